/* The kernels as operators of PyTorch. A call runs no Python, forward or backward.
 *
 * cpu_recentred is the operator that users call. cpu_recentred_forward, which also returns the
 * statistics of each row, and cpu_recentred_backward are what autograd records, so that torch.compile,
 * torch.export and torch.func see each of them as one operator. Built by build.py; operators.py has
 * their schemas and their Meta kernels.
 */

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>

#include "kernels.h"

namespace {

using at::Tensor;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using Parameter = std::optional<Tensor>;

constexpr int64_t STATISTICS = 3; /* numbers kept of a row */

Element type_of(const Tensor &tensor)
{
    switch (tensor.scalar_type()) {
    case at::kFloat:
        return FLOAT32;
    case at::kDouble:
        return FLOAT64;
    case at::kBFloat16:
        return BFLOAT16;
    case at::kHalf:
        return FLOAT16;
    default:
        TORCH_CHECK_NOT_IMPLEMENTED(false, "cpu_recentred does not take ", tensor.scalar_type(),
                                    "; it takes float32, float64, bfloat16 and float16");
    }
}

Element type_of(const char *name, const Tensor &parameter, const Tensor &x)
{
    if (!parameter.defined())
        return type_of(x);
    TORCH_CHECK_NOT_IMPLEMENTED(
        parameter.scalar_type() == x.scalar_type() || parameter.scalar_type() == at::kFloat,
        "cpu_recentred takes ", name, " in x's dtype or in float32; x is ", x.scalar_type(), ", ",
        name, " is ", parameter.scalar_type());
    return type_of(parameter);
}

at::ScalarType wide_type(const Tensor &x)
{
    return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/* Elements of a row, after a check of all shapes. */
int64_t row_of(const Tensor &x, at::IntArrayRef shape, const Tensor &weight, const Tensor &bias)
{
    TORCH_CHECK_VALUE(!shape.empty(), "normalized_shape is empty: name at least one trailing axis");
    TORCH_CHECK_VALUE(x.dim() >= int64_t(shape.size()) && x.sizes().slice(x.dim() - shape.size()) == shape,
                      "normalized_shape is ", shape, ", but x has shape ", x.sizes(), ": its last ",
                      shape.size(), " axes must be the same");
    TORCH_CHECK_VALUE(!weight.defined() || weight.sizes() == shape, "weight has shape ",
                      weight.sizes(), ", expected ", shape, " (the normalized_shape)");
    TORCH_CHECK_VALUE(!bias.defined() || bias.sizes() == shape, "bias has shape ", bias.sizes(),
                      ", expected ", shape, " (the normalized_shape)");
    return c10::multiply_integers(shape);
}

/* Without the dispatcher, which takes longer than the rest of a small call. */
Tensor dense_like(const Tensor &tensor)
{
    return at::detail::empty_cpu(tensor.sizes(), tensor.scalar_type());
}

const char *data_of(const Tensor &tensor)
{
    return tensor.defined() ? static_cast<const char *>(tensor.const_data_ptr()) : nullptr;
}

char *room_of(const Tensor &tensor)
{
    return tensor.defined() ? static_cast<char *>(tensor.mutable_data_ptr()) : nullptr;
}

/* x, or a copy of it, with dense rows; and the elements from one row to the next. */
std::pair<Tensor, int64_t> dense_rows(const Tensor &x, int64_t hidden)
{
    if (x.is_contiguous())
        return {x, hidden};
    Tensor rows = x.reshape({-1, hidden}); /* copies only if rows are not evenly spaced */
    if (hidden > 1 && rows.stride(1) != 1)
        rows = rows.contiguous();
    return {rows, rows.stride(0)};
}

Tensor dense(const Tensor &parameter)
{
    return parameter.defined() ? parameter.contiguous() : parameter;
}

/* y; and the statistics of each row if `statistics` is not null. */
Tensor normalised(const Tensor &x, const Tensor &weight, const Tensor &bias, int64_t hidden,
                  double eps, Tensor *statistics)
{
    const int64_t rows = hidden ? x.numel() / hidden : 0;
    const Element type = type_of(x), weight_type = type_of("weight", weight, x),
                  bias_type = type_of("bias", bias, x);
    Tensor y = dense_like(x);
    if (statistics)
        *statistics = at::detail::empty_cpu({rows, STATISTICS}, wide_type(x));
    if (!rows)
        return y;
    const auto [from, stride] = dense_rows(x, hidden);
    const Tensor scale = dense(weight), shift = dense(bias);
    const Forward call = {
        .x = data_of(from),
        .weight = data_of(scale),
        .bias = data_of(shift),
        .y = room_of(y),
        .statistics = statistics ? room_of(*statistics) : nullptr,
        .rows = rows,
        .hidden = hidden,
        .x_stride = stride,
        .eps = eps,
        .type = type,
        .weight_type = weight_type,
        .bias_type = bias_type,
        .threads = at::get_num_threads(),
    };
    TORCH_CHECK(run_forward(call), "cpu_recentred: no memory for 2 x ", hidden, " parameters");
    return y;
}

const Tensor &of(const Parameter &parameter)
{
    static const Tensor none;
    return parameter ? *parameter : none;
}

Parameter optional(const Tensor &parameter)
{
    return parameter.defined() ? Parameter(parameter) : std::nullopt;
}

/* --- CPU ---------------------------------------------------------------------------------------- */

Tensor layer_norm_cpu(const Tensor &x, at::IntArrayRef shape, const Parameter &weight,
                      const Parameter &bias, double eps)
{
    const Tensor &scale = of(weight), &shift = of(bias);
    return normalised(x, scale, shift, row_of(x, shape, scale, shift), eps, nullptr);
}

std::tuple<Tensor, Tensor> forward_cpu(const Tensor &x, const Parameter &weight,
                                       const Parameter &bias, int64_t hidden, double eps)
{
    Tensor statistics;
    Tensor y = normalised(x, of(weight), of(bias), hidden, eps, &statistics);
    return {std::move(y), std::move(statistics)};
}

/* Those of dx, dweight and dbias that are wanted; the others are empty. */
std::tuple<Tensor, Tensor, Tensor> backward_cpu(const Tensor &gradient, const Tensor &x,
                                                const Parameter &weight, const Parameter &bias,
                                                const Tensor &statistics, int64_t hidden,
                                                std::array<bool, 3> wanted)
{
    /* the kernel reads memory: only a copy's holds the sign, or the zeros */
    const Tensor dy = gradient.is_neg() || gradient._is_zerotensor() ? gradient.clone() : gradient;
    const Tensor &scale = of(weight), &shift = of(bias);
    Tensor dx, dweight, dbias;
    if (wanted[0])
        dx = dense_like(x);
    if (wanted[1] && scale.defined())
        dweight = dense_like(scale);
    if (wanted[2] && shift.defined())
        dbias = dense_like(shift);
    if (x.numel()) {
        const auto [from, x_stride] = dense_rows(x, hidden);
        const auto [upstream, dy_stride] = dense_rows(dy, hidden);
        const Tensor dense_scale = dense(scale);
        const int64_t rows = x.numel() / hidden;
        const Backward call = {
            .x = data_of(from),
            .dy = data_of(upstream),
            .weight = data_of(dense_scale),
            .statistics = statistics.const_data_ptr(),
            .dx = room_of(dx),
            .dweight = room_of(dweight),
            .dbias = room_of(dbias),
            .rows = rows,
            .hidden = hidden,
            .x_stride = x_stride,
            .dy_stride = dy_stride,
            .type = type_of(x),
            .weight_type = type_of("weight", scale, x),
            .bias_type = type_of("bias", shift, x),
            .threads = at::get_num_threads(),
        };
        TORCH_CHECK(run_backward(call), "cpu_recentred: no memory to sum gradients over ", rows,
                    " rows");
    } else {
        for (const Tensor &each : {dweight, dbias})
            if (each.defined())
                each.zero_();
    }
    for (Tensor *each : {&dx, &dweight, &dbias}) /* an operator returns tensors */
        if (!each->defined())
            *each = at::detail::empty_cpu({0}, x.scalar_type());
    return {dx, dweight, dbias};
}

/* --- autograd ----------------------------------------------------------------------------------- */

template <class Function>
c10::TypedOperatorHandle<Function> operator_named(const char *name)
{
    return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
}

#define TEXT_(name) #name
#define TEXT(name) TEXT_(name)
#define NAME(operator) TEXT(NAMESPACE) "::" operator

/* The gradients, composed of operations that autograd can differentiate. */
variable_list composed_gradients(const Tensor &dy, const Tensor &x, const Tensor &weight,
                                 const Tensor &bias, int64_t hidden, double eps)
{
    const Tensor rows = x.reshape({-1, hidden}).to(wide_type(x));
    const Tensor upstream = dy.reshape({-1, hidden}).to(wide_type(x));
    Tensor deviation = rows.sub(rows.mean(-1, true));
    for (int again = 0; again < 2; again++) /* twice: see recentred.py */
        /* detached: apart from rounding, this mean is zero for every x, and so is its gradient */
        deviation = deviation.sub(deviation.detach().mean(-1, true));
    const Tensor rstd = deviation.square().mean(-1, true).add(eps).rsqrt();
    const Tensor normalised = deviation.mul(rstd);
    const Tensor scaled = weight.defined() ? upstream.mul(weight.reshape(hidden)) : upstream;
    const Tensor along = scaled.mul(normalised).mean(-1, true);
    const Tensor dx = rstd.mul(scaled.sub(scaled.mean(-1, true)).sub(normalised.mul(along)));
    variable_list found = {dx.reshape(x.sizes()).to(x.scalar_type()), Tensor(), Tensor()};
    if (weight.defined())
        found[1] = upstream.mul(normalised).sum(0).reshape(weight.sizes()).to(weight.scalar_type());
    if (bias.defined())
        found[2] = upstream.sum(0).reshape(bias.sizes()).to(bias.scalar_type());
    return found;
}

/* Not a torch::autograd::Function, which takes 1 us longer per call and 3 s longer to compile. */
class CpuRecentredBackward : public torch::autograd::Node {
  public:
    CpuRecentredBackward(const Tensor &x, const Tensor &weight, const Tensor &bias,
                         const Tensor &statistics, int64_t hidden, double eps)
        : Node(torch::autograd::collect_next_edges(x, weight, bias)), x(x, false),
          weight(weight, false), bias(bias, false), statistics(statistics, false), hidden(hidden),
          eps(eps)
    {
    }

    std::string name() const override
    {
        return "CpuRecentredBackward";
    }

    void release_variables() override
    {
        std::lock_guard<std::mutex> lock(mutex_);
        for (SavedVariable *each : {&x, &weight, &bias, &statistics})
            each->reset_data();
    }

  private:
    variable_list apply(variable_list &&upstream) override
    {
        std::lock_guard<std::mutex> lock(mutex_); /* as generated nodes do: see release_variables */
        variable_list found(3);
        const Tensor &dy = upstream[0];
        if (!dy.defined())
            return found;
        const Tensor x = this->x.unpack(), weight = this->weight.unpack(), bias = this->bias.unpack();
        if (at::GradMode::is_enabled())
            return composed_gradients(dy, x, weight, bias, hidden, eps);
        const std::array<bool, 3> wanted = {task_should_compute_output(0), task_should_compute_output(1),
                                            task_should_compute_output(2)};
        static const auto call = operator_named<decltype(backward_cpu)>(NAME("cpu_recentred_backward"));
        std::tie(found[0], found[1], found[2]) = call.call(dy, x, optional(weight), optional(bias),
                                                           statistics.unpack(), hidden, wanted);
        for (size_t i = 0; i < 3; i++)
            if (!wanted[i])
                found[i].reset();
        return found;
    }

    SavedVariable x, weight, bias, statistics;
    const int64_t hidden;
    const double eps;
};

/* A node, in the kind of pointer in which this version of torch keeps one. */
template <class Owner, class... Arguments> Owner owned(const Arguments &...arguments)
{
    if constexpr (std::is_same_v<Owner, std::shared_ptr<torch::autograd::Node>>)
        return Owner(new CpuRecentredBackward(arguments...), [](auto *node) { deleteNode(node); });
    else
        return c10::make_intrusive<CpuRecentredBackward>(arguments...);
}

bool is_required(const Tensor &tensor)
{
    return tensor.defined() && tensor.requires_grad();
}

Tensor layer_norm_autograd(c10::DispatchKeySet keys, const Tensor &x, at::IntArrayRef shape,
                           const Parameter &weight, const Parameter &bias, double eps)
{
    const Tensor &scale = of(weight), &shift = of(bias);
    for (const Tensor *each : {&x, &scale, &shift})
        TORCH_CHECK_NOT_IMPLEMENTED(!each->defined() || !each->_fw_grad(/*level=*/0).defined(),
                                    "cpu_recentred has no forward-mode derivative");
    at::AutoDispatchBelowADInplaceOrView below; /* no autograd from here on */
    keys = keys & c10::after_ADInplaceOrView_keyset;
    if (!at::GradMode::is_enabled() || !(is_required(x) || is_required(scale) || is_required(shift))) {
        static const auto call = operator_named<decltype(layer_norm_cpu)>(NAME("cpu_recentred"));
        return call.redispatch(keys, x, shape, weight, bias, eps);
    }
    const int64_t hidden = row_of(x, shape, scale, shift);
    static const auto call = operator_named<decltype(forward_cpu)>(NAME("cpu_recentred_forward"));
    auto [y, statistics] = call.redispatch(keys, x, weight, bias, hidden, eps);
    torch::autograd::create_gradient_edge(
        y, owned<decltype(torch::autograd::Edge::function)>(x, scale, shift, statistics, hidden, eps));
    return y;
}

} // namespace

TORCH_LIBRARY_IMPL(NAMESPACE, CPU, library)
{
    library.impl("cpu_recentred", layer_norm_cpu);
    library.impl("cpu_recentred_forward", forward_cpu);
    library.impl("cpu_recentred_backward", backward_cpu);
}

TORCH_LIBRARY_IMPL(NAMESPACE, Autograd, library)
{
    library.impl("cpu_recentred", layer_norm_autograd);
    library.impl("cpu_recentred_forward", torch::CppFunction::makeFallthrough());
    library.impl("cpu_recentred_backward", torch::CppFunction::makeFallthrough());
}

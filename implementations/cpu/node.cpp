/* Calls of recentred.h on tensors, with an autograd node in C++. Neither forward nor backward runs
 * Python, which takes longer than a small LayerNorm. Built by build.py, called by node.py.
 *
 * As calls.py does for calls from Python, it makes parameters and rows dense, and returns early if
 * there are no elements.
 */

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/rsqrt.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "recentred.h"

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Parameter = std::optional<Tensor>;

constexpr int64_t STATISTICS = 3; /* numbers kept of a row */

/* Functions of the C library; node.py sets them before the first call. */
decltype(&recentred_forward) run_forward;
decltype(&recentred_backward) run_backward;
parallel_function run_parallel;

int type_of(const Tensor &tensor)
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
        TORCH_CHECK(false, "cpp_recentred does not take ", tensor.scalar_type());
    }
}

at::ScalarType wide_type(const Tensor &x)
{
    return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
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

/* A parameter as the kernels read it: dense, or undefined if there is none. */
Tensor dense(const Tensor &parameter)
{
    return parameter.defined() ? parameter.contiguous() : parameter;
}

/* y; and the statistics of each row if `statistics` is not null. */
Tensor normalised(const Tensor &x, const Tensor &weight, const Tensor &bias, int64_t hidden,
                  double eps, Tensor *statistics)
{
    const int64_t rows = hidden ? x.numel() / hidden : 0;
    Tensor y = dense_like(x);
    if (statistics)
        *statistics = at::detail::empty_cpu({rows, STATISTICS}, wide_type(x));
    if (!rows)
        return y;
    const auto [from, stride] = dense_rows(x, hidden);
    const Tensor scale = dense(weight), shift = dense(bias);
    const forward call = {
        .x = data_of(from),
        .weight = data_of(scale),
        .bias = data_of(shift),
        .y = room_of(y),
        .statistics = statistics ? room_of(*statistics) : nullptr,
        .parallel = run_parallel,
        .rows = rows,
        .hidden = hidden,
        .x_stride = stride,
        .eps = eps,
        .type = type_of(x),
        .weight_type = type_of(weight.defined() ? weight : x),
        .bias_type = type_of(bias.defined() ? bias : x),
        .threads = at::get_num_threads(),
    };
    TORCH_CHECK(run_forward(&call) == 0, "cpp_recentred: no memory for 2 x ", hidden, " parameters");
    return y;
}

/* Fills those of dx, dweight and dbias that are defined. */
void fill_gradients(const Tensor &dy, const Tensor &x, const Tensor &weight, const Tensor &bias,
                    const Tensor &statistics, int64_t hidden, const Tensor &dx,
                    const Tensor &dweight, const Tensor &dbias)
{
    if (!x.numel()) {
        for (const Tensor &each : {dweight, dbias})
            if (each.defined())
                each.zero_();
        return;
    }
    const auto [from, x_stride] = dense_rows(x, hidden);
    const auto [upstream, dy_stride] = dense_rows(dy, hidden);
    const Tensor scale = dense(weight);
    const int64_t rows = x.numel() / hidden;
    const backward call = {
        .x = data_of(from),
        .dy = data_of(upstream),
        .weight = data_of(scale),
        .statistics = statistics.const_data_ptr(),
        .dx = room_of(dx),
        .dweight = room_of(dweight),
        .dbias = room_of(dbias),
        .parallel = run_parallel,
        .rows = rows,
        .hidden = hidden,
        .x_stride = x_stride,
        .dy_stride = dy_stride,
        .type = type_of(x),
        .weight_type = type_of(weight.defined() ? weight : x),
        .bias_type = type_of(bias.defined() ? bias : x),
        .threads = at::get_num_threads(),
    };
    TORCH_CHECK(run_backward(&call) == 0, "cpp_recentred: no memory to sum gradients over ", rows,
                " rows");
}

/* The gradients, composed of operations that autograd can differentiate, as in operators.py. */
variable_list composed_gradients(const Tensor &dy, const Tensor &x, const Tensor &weight,
                                 const Tensor &bias, int64_t hidden, double eps)
{
    const Tensor rows = x.reshape({-1, hidden}).to(wide_type(x));
    const Tensor upstream = dy.reshape({-1, hidden}).to(wide_type(x));
    Tensor deviation = rows - rows.mean(-1, true);
    for (int again = 0; again < 2; again++)
        deviation = deviation - deviation.detach().mean(-1, true);
    const Tensor rstd = at::rsqrt(deviation.square().mean(-1, true) + eps);
    const Tensor normalised = deviation * rstd;
    const Tensor scaled = weight.defined() ? upstream * weight.reshape(hidden) : upstream;
    const Tensor along = (scaled * normalised).mean(-1, true);
    const Tensor dx = rstd * (scaled - scaled.mean(-1, true) - normalised * along);
    variable_list found = {dx.reshape(x.sizes()).to(x.scalar_type()), Tensor(), Tensor()};
    if (weight.defined())
        found[1] = (upstream * normalised).sum(0).reshape(weight.sizes()).to(weight.scalar_type());
    if (bias.defined())
        found[2] = upstream.sum(0).reshape(bias.sizes()).to(bias.scalar_type());
    return found;
}

struct Recentred : torch::autograd::Function<Recentred> {
    static Tensor forward(AutogradContext *context, const Tensor &x, const Parameter &weight,
                          const Parameter &bias, int64_t hidden, double eps)
    {
        const Tensor scale = weight.value_or(Tensor()), shift = bias.value_or(Tensor());
        Tensor statistics;
        Tensor y = normalised(x, scale, shift, hidden, eps, &statistics);
        context->save_for_backward({x, scale, shift, statistics});
        context->saved_data["hidden"] = hidden;
        context->saved_data["eps"] = eps;
        return y;
    }

    static variable_list backward(AutogradContext *context, variable_list upstream)
    {
        const variable_list saved = context->get_saved_variables();
        const Tensor &x = saved[0], &weight = saved[1], &bias = saved[2], &statistics = saved[3];
        const int64_t hidden = context->saved_data["hidden"].toInt();
        variable_list found(5);
        if (at::GradMode::is_enabled()) {
            const double eps = context->saved_data["eps"].toDouble();
            const auto composed = composed_gradients(upstream[0], x, weight, bias, hidden, eps);
            std::copy(composed.begin(), composed.end(), found.begin());
            return found;
        }
        size_t edge = 0; /* counts defined tensors, not arguments */
        for (size_t i = 0; i < 3; i++)
            if (saved[i].defined() && context->needs_input_grad(edge++))
                found[i] = dense_like(saved[i]);
        const Tensor &dy = upstream[0];
        /* the C code reads memory: only a copy's holds the sign, or the zeros */
        const bool is_kept = !dy.is_neg() && !dy._is_zerotensor();
        fill_gradients(is_kept ? dy : dy.clone(), x, weight, bias, statistics, hidden, found[0], found[1],
                       found[2]);
        return found;
    }
};

Tensor layer_norm(const Tensor &x, const Parameter &weight, const Parameter &bias, int64_t hidden,
                  double eps)
{
    TORCH_CHECK(x.is_cpu() && (!weight || weight->is_cpu()) && (!bias || bias->is_cpu()),
                "cpp_recentred runs on the cpu");
    const bool is_recorded =
        at::GradMode::is_enabled() && (x.requires_grad() || (weight && weight->requires_grad()) ||
                                       (bias && bias->requires_grad()));
    if (is_recorded)
        return Recentred::apply(x, weight, bias, hidden, eps);
    at::AutoDispatchBelowADInplaceOrView below; /* no autograd from here on */
    return normalised(x, weight.value_or(Tensor()), bias.value_or(Tensor()), hidden, eps, nullptr);
}

#define TEXT_(name) #name
#define TEXT(name) TEXT_(name)
/* DIGEST, from build.py, distinguishes the operators of two revisions in one process. */
#define OPERATOR "cpp_recentred_" TEXT(DIGEST)

TORCH_LIBRARY_FRAGMENT(layernorm_bench, library)
{
    library.def(OPERATOR "(Tensor x, Tensor? weight, Tensor? bias, int hidden, float eps) -> Tensor",
                layer_norm);
}

} // namespace

/* Sets what the operator calls; returns its name, with the namespace. */
extern "C" const char *use_library(decltype(&recentred_forward) forward,
                                   decltype(&recentred_backward) backward,
                                   parallel_function parallel)
{
    run_forward = forward;
    run_backward = backward;
    run_parallel = parallel;
    return "layernorm_bench::" OPERATOR;
}

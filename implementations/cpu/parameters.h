/* Weight and bias, and their gradients, in Real and in the types that they have in memory. */

/* A parameter in Real, in whole steps, either in place or copied to `room`. Without a parameter, every
 * element is `missing`. If vectors are converted together, a step's vectors lie one after the other, and
 * those of the tail after all others. */
template <class Real>
static const Real *parameter(const char *from, int type, const Cut<Real> &cut, Real missing, Real *room)
{
    const int vectors = int(cut.step / LANES<Real>);
    if (from && size_of(type) == ptrdiff_t(sizeof(Real)) && vectors == 1 && cut.hidden >= LANES<Real>)
        return (const Real *)from;
    for (ptrdiff_t i = 0; i < cut.padded; i += cut.step) {
        Vector<Real> v[2] = {Vector<Real>{} + missing, Vector<Real>{} + missing};
        if (from) {
            char last[2 * VECTOR_BYTES] = {};
            const ptrdiff_t size = size_of(type), left = cut.hidden - i;
            const char *at = from + i * size;
            if (left < cut.step && vectors > 1 && cut.tail > 0)
                at = from + cut.tail * size;
            else if (left < cut.step)
                at = static_cast<char *>(memcpy(last, at, left * size));
            if (vectors == 1)
                v[0] = load<Real>(at, 0, type);
            else if (type == BFLOAT16)
                load_together<Real>(v, at, 0, type);
            else /* float32 beside x in bfloat16 */
                for (ptrdiff_t n = 0; n < cut.step; n++) {
                    float element;
                    memcpy(&element, at + n * sizeof element, sizeof element);
                    v[n % 2][n / 2] = element;
                }
        }
        for (int n = 0; n < vectors; n++)
            put(room + i + n * LANES<Real>, v[n]);
    }
    return room;
}

/* Rounds sums to a parameter's type. */
template <class Real> static void store_all(char *to, const Real *sums, ptrdiff_t hidden, int type)
{
    for (ptrdiff_t i = 0; i < hidden; i += LANES<Real>) {
        char last[VECTOR_BYTES];
        Vector<Real> v = get(sums + i);
        if (i + LANES<Real> <= hidden) {
            store(to, i, v, type, USUAL);
        } else {
            store(last, 0, v, type, USUAL);
            memcpy(to + i * size_of(type), last, (hidden - i) * size_of(type));
        }
    }
}

/* Whether no element of a parameter is infinite or NaN: the product with 0 is then 0. */
template <class Real> INLINE int is_finite(const Real *parameter, ptrdiff_t hidden)
{
    Vector<Real> sum = {};
    ptrdiff_t i = 0;
    for (; i + LANES<Real> <= hidden; i += LANES<Real>)
        sum += get(parameter + i) * 0;
    for (; i < hidden; i++)
        sum[0] += parameter[i] * 0;
    return lanes_sum(sum) == 0;
}

/* Adds the sums of all parts to each other, as a tree, and rounds them to the parameters' types. */
template <class Real> static void finish(const Backward &call, Real *sums, ptrdiff_t parts)
{
    const ptrdiff_t columns = padded<Real>(call.hidden), width = 2 * columns;
    for (ptrdiff_t step = 1; step < parts; step *= 2)
        for (ptrdiff_t part = 0; part + step < parts; part += 2 * step)
            for (ptrdiff_t i = 0; i < width; i++)
                sums[part * width + i] += sums[(part + step) * width + i];
    if (call.dweight)
        store_all(call.dweight, sums, call.hidden, call.weight_type);
    if (call.dbias)
        store_all(call.dbias, sums + columns, call.hidden, call.bias_type);
}

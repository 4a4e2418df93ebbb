/* Weight and bias, and their gradients, in Real and in the types that they have in memory. */

/* A parameter in Real and in whole vectors, either in place or copied to `room`. Without a parameter,
 * every element is `missing`. */
template <class Real> static const Real *parameter(const char *from, int type, ptrdiff_t hidden, Real missing,
                                   Real *room)
{
    if (from && size_of(type) == ptrdiff_t(sizeof(Real)) && hidden >= LANES<Real>)
        return (const Real *)from;
    for (ptrdiff_t i = 0; i < hidden; i += LANES<Real>) {
        char last[VECTOR_BYTES] = {};
        Vector<Real> v = Vector<Real>{} + missing;
        if (from && i + LANES<Real> <= hidden)
            v = load<Real>(from, i, type);
        else if (from)
            memcpy(last, from + i * size_of(type), (hidden - i) * size_of(type)), v = load<Real>(last, 0, type);
        put(room + i, v);
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

/* Weight and bias, and their gradients, in REAL and in the types that they have in memory. */

/* A parameter in REAL and in whole vectors, either in place or copied to `room`. Without a parameter,
 * every element is `missing`. */
static const REAL *NAME(parameter)(const char *from, int type, ptrdiff_t hidden, REAL missing,
                                   REAL *room)
{
    if (from && size_of(type) == (ptrdiff_t)sizeof(REAL) && hidden >= LANES)
        return (const REAL *)from;
    for (ptrdiff_t i = 0; i < hidden; i += LANES) {
        char last[VECTOR_BYTES] = {0};
        NAME(vector) v = (NAME(vector)){0} + missing;
        if (from && i + LANES <= hidden)
            v = NAME(load)(from, i, type);
        else if (from)
            v = NAME(load)(memcpy(last, from + i * size_of(type), (hidden - i) * size_of(type)), 0, type);
        NAME(put)(room + i, v);
    }
    return room;
}

/* Rounds sums to a parameter's type. */
static void NAME(store_all)(char *to, const REAL *sums, ptrdiff_t hidden, int type)
{
    for (ptrdiff_t i = 0; i < hidden; i += LANES) {
        char last[VECTOR_BYTES];
        NAME(vector) v = NAME(get)(sums + i);
        if (i + LANES <= hidden) {
            NAME(store)(to, i, v, type, USUAL);
        } else {
            NAME(store)(last, 0, v, type, USUAL);
            memcpy(to + i * size_of(type), last, (hidden - i) * size_of(type));
        }
    }
}

/* Whether no element of a parameter is infinite or NaN: the product with 0 is then 0. */
INLINE int NAME(is_finite)(const REAL *parameter, ptrdiff_t hidden)
{
    NAME(vector) sum = {0};
    ptrdiff_t i = 0;
    for (; i + LANES <= hidden; i += LANES)
        sum += NAME(get)(parameter + i) * 0;
    for (; i < hidden; i++)
        sum[0] += parameter[i] * 0;
    return NAME(lanes_sum)(sum) == 0;
}

/* Adds the sums of all parts to each other, as a tree, and rounds them to the parameters' types. */
static void NAME(finish)(const struct backward *call, REAL *sums, ptrdiff_t parts)
{
    const ptrdiff_t columns = padded(call->hidden, LANES), width = 2 * columns;
    for (ptrdiff_t step = 1; step < parts; step *= 2)
        for (ptrdiff_t part = 0; part + step < parts; part += 2 * step)
            for (ptrdiff_t i = 0; i < width; i++)
                sums[part * width + i] += sums[(part + step) * width + i];
    if (call->dweight)
        NAME(store_all)(call->dweight, sums, call->hidden, call->weight_type);
    if (call->dbias)
        NAME(store_all)(call->dbias, sums + columns, call->hidden, call->bias_type);
}

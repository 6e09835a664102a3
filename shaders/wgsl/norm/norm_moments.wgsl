    // Statements that measure a row, or a part of one: `count` vectors from `first` on, `elements` numbers in all. They
    // leave its scaled elements in `held`, less their mean for layer normalisation: that is `center` and `delta` together,
    // an estimate and the mean of the differences from it, which are nearly exact. So an offset costs nothing.
    var held: array<F, ${HELD}>;
    var greatest = U(0u);
    for (var h = 0u; h < ${HELD}u; h += 1u) {
        let i = lane + h * ${TEAM}u;
        if there(i, count) {
            held[h] = x[first + i];
            greatest = max(greatest, bitcast<U>(held[h]) & U(0x7fffffffu));
        }
    }
    let magnitude = team_max(local, lanes_max(greatest));
    let scale = scale_of(magnitude);
#if LAYER
    var high = U(0u);
    var low = U(0u);
    for (var h = 0u; h < ${HELD}u; h += 1u) {
        if there(lane + h * ${TEAM}u, count) {
            held[h] = rescaled(held[h], scale);
            high = max(high, key_of(held[h]));
            low = max(low, ~key_of(held[h]));
        }
    }
    // Between the least and the greatest, so that the differences from the center of a constant row are zero.
    let estimate = team_sum(local, lanes_sum(pairwise(held))) / f32(elements);
    let most = bitcast<f32>(bits_of_key(team_max(local, lanes_max(high))));
    let least = bitcast<f32>(bits_of_key(~team_max(local, lanes_max(low))));
    let center = clamp(estimate, min(least, most), most);
    for (var h = 0u; h < ${HELD}u; h += 1u) {
        if there(lane + h * ${TEAM}u, count) {
            held[h] -= center;
        }
    }
    let delta = team_sum(local, lanes_sum(pairwise(held))) / f32(elements);
    var terms: array<F, ${HELD}>;
    for (var h = 0u; h < ${HELD}u; h += 1u) {
        if there(lane + h * ${TEAM}u, count) {
            held[h] -= delta;
            terms[h] = held[h] * held[h];
        }
    }
#else
    var terms: array<F, ${HELD}>;
    for (var h = 0u; h < ${HELD}u; h += 1u) {
        held[h] = rescaled(held[h], scale);
        terms[h] = held[h] * held[h];
    }
#endif
    let squares = team_sum(local, lanes_sum(pairwise(terms)));

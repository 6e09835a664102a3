    // The elements from `first` on: the greatest, the least where that is below `lo`, and the root of their mean square.
    var hi = -3.4028234663852886e38;
    var even = vec4<f32>(0.0);
    var odd = vec4<f32>(0.0);
    for (var i = 0u; i < VECTORS; i += 2u) {
        let x0 = tile[first + i];
        let x1 = tile[first + i + 1u];
        let least = min(x0, x1);
        let most = max(x0, x1);
        lo = min(lo, min(min(least.x, least.y), min(least.z, least.w)));
        hi = max(hi, max(max(most.x, most.y), max(most.z, most.w)));
        even += times_each(x0, x0);
        odd += times_each(x1, x1);
    }
    let rms = exact_root(total(even, odd) * (0.25 / f32(VECTORS)));

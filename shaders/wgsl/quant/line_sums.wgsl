        // The sums of a trial of a line through the elements from `first` on: over the weights of elements, and with elements,
        // integers and their products. Even and odd vectors have chains of their own.
        var w_even = vec4<f32>(0.0);
        var w_odd = vec4<f32>(0.0);
        var x_even = vec4<f32>(0.0);
        var x_odd = vec4<f32>(0.0);
        var q_even = vec4<f32>(0.0);
        var q_odd = vec4<f32>(0.0);
        var qq_even = vec4<f32>(0.0);
        var qq_odd = vec4<f32>(0.0);
        var xq_even = vec4<f32>(0.0);
        var xq_odd = vec4<f32>(0.0);
        let factor = exact_quotient(LEVELS + (f32(trial) - 8.0) * 0.125, hi - lo);
        for (var i = 0u; i < VECTORS; i += 2u) {
            let x0 = tile[first + i];
            let w0 = rms + abs(x0);
            let wx0 = times_each(w0, x0);
            let q0 = integers(x0, -lo, factor, 0.0, LEVELS);
            let wq0 = times_each(w0, q0);
            w_even += w0;
            x_even += wx0;
            q_even += wq0;
            qq_even += times_each(wq0, q0);
            xq_even += times_each(wx0, q0);
            let x1 = tile[first + i + 1u];
            let w1 = rms + abs(x1);
            let wx1 = times_each(w1, x1);
            let q1 = integers(x1, -lo, factor, 0.0, LEVELS);
            let wq1 = times_each(w1, q1);
            w_odd += w1;
            x_odd += wx1;
            q_odd += wq1;
            qq_odd += times_each(wq1, q1);
            xq_odd += times_each(wx1, q1);
        }
        let sum_w = total(w_even, w_odd);
        let sum_x = total(x_even, x_odd);
        let sum_q = total(q_even, q_odd);
        let sum_qq = total(qq_even, qq_odd);
        let sum_xq = total(xq_even, xq_odd);
        let determinant = times(sum_w, sum_qq) - times(sum_q, sum_q);

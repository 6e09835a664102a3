                // The products of sixteen rows of x, from line `line` on, with both blocks of weights. Their sums begin at
                // zero, because units for cooperative matrices truncate; those of slices are added with rounding.
                let a0 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[line], LINE);
                let a1 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[line + 4u], LINE);
                let a2 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[line + 8u], LINE);
                let a3 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[line + 12u], LINE);
                var s0 = Sums();
                var s1 = Sums();
#if PASSES == 3
                // Rests come first: their products are the smallest.
                s0 = coopMultiplyAdd(a0, y02, s0);
                s1 = coopMultiplyAdd(a0, y12, s1);
                s0 = coopMultiplyAdd(a1, y03, s0);
                s1 = coopMultiplyAdd(a1, y13, s1);
                s0 = coopMultiplyAdd(a2, y00, s0);
                s1 = coopMultiplyAdd(a2, y10, s1);
                s0 = coopMultiplyAdd(a3, y01, s0);
                s1 = coopMultiplyAdd(a3, y11, s1);
#else
                s0 = coopMultiplyAdd(a2, y02, s0);
                s1 = coopMultiplyAdd(a2, y12, s1);
                s0 = coopMultiplyAdd(a3, y03, s0);
                s1 = coopMultiplyAdd(a3, y13, s1);
#endif
                s0 = coopMultiplyAdd(a0, y00, s0);
                s1 = coopMultiplyAdd(a0, y10, s1);
                s0 = coopMultiplyAdd(a1, y01, s0);
                s1 = coopMultiplyAdd(a1, y11, s1);

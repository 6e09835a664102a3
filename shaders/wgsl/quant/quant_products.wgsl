                // The products of sixteen rows of x, from line `line` on, with the blocks of weights, added to their sums. Units for
                // cooperative matrices truncate: with three passes the sums of a slice are added with rounding.
                let a0 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[line], LINE);
                let a1 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[line + 4u], LINE);
#if PASSES == 3
                let a2 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[line + 8u], LINE);
                let a3 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[line + 12u], LINE);
                let before0 = s0;
                let before1 = s1;
                s0 = Sums();
                s1 = Sums();
                // Rests come first: their products are the smallest.
                s0 = coopMultiplyAdd(a0, y02, s0);
                s1 = coopMultiplyAdd(a0, y12, s1);
                s0 = coopMultiplyAdd(a1, y03, s0);
                s1 = coopMultiplyAdd(a1, y13, s1);
                s0 = coopMultiplyAdd(a2, y00, s0);
                s1 = coopMultiplyAdd(a2, y10, s1);
                s0 = coopMultiplyAdd(a3, y01, s0);
                s1 = coopMultiplyAdd(a3, y11, s1);
#endif
                s0 = coopMultiplyAdd(a0, y00, s0);
                s1 = coopMultiplyAdd(a0, y10, s1);
#if PASSES == 1
                s2 = coopMultiplyAdd(a0, y20, s2);
                s3 = coopMultiplyAdd(a0, y30, s3);
#endif
                s0 = coopMultiplyAdd(a1, y01, s0);
                s1 = coopMultiplyAdd(a1, y11, s1);
#if PASSES == 3
                s0 = before0 + s0;
                s1 = before1 + s1;
#else
                s2 = coopMultiplyAdd(a1, y21, s2);
                s3 = coopMultiplyAdd(a1, y31, s3);
#endif

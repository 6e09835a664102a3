        // The products of a slice, added to the sums. Units for cooperative matrices truncate: with three passes the sums of a slice are
        // added with rounding.
        {
#for j WIDE
            let y_${j}_0 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[right + 16u * ${j}u * LINE], LINE);
            let y_${j}_1 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[right + 16u * ${j}u * LINE + 4u], LINE);
#endfor
#if PASSES == 3
#for j WIDE
            let rest_${j}_0 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[right + 16u * ${j}u * LINE + 8u], LINE);
            let rest_${j}_1 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[right + 16u * ${j}u * LINE + 12u], LINE);
#endfor
#endif
#for i 4
            {
                let line = down + 16u * ${i}u * LINE;
                let a0 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[line], LINE);
                let a1 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[line + 4u], LINE);
#if PASSES == 3
                let a2 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[line + 8u], LINE);
                let a3 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[line + 12u], LINE);
#for j WIDE
                var s_${j} = Sums();
#endfor
                // Rests come first: their products are the smallest.
#for k 2
#for j WIDE
                s_${j} = coopMultiplyAdd(a${k}, rest_${j}_${k}, s_${j});
#endfor
#endfor
#for j WIDE
                s_${j} = coopMultiplyAdd(a2, y_${j}_0, s_${j});
#endfor
#for j WIDE
                s_${j} = coopMultiplyAdd(a3, y_${j}_1, s_${j});
#endfor
#for k 2
#for j WIDE
                s_${j} = coopMultiplyAdd(a${k}, y_${j}_${k}, s_${j});
#endfor
#endfor
#for j WIDE
                c_${i}_${j} = c_${i}_${j} + s_${j};
#endfor
#else
#for k 2
#for j WIDE
                c_${i}_${j} = coopMultiplyAdd(a${k}, y_${j}_${k}, c_${i}_${j});
#endfor
#endfor
#endif
            }
#endfor
        }

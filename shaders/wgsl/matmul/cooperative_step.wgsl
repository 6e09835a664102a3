            // Sixteen k of a slice, from `step` on: the blocks of A and B, and their products added to the sums.
#if TRANSPOSE_A
            let at_a = step * LINE_A + down / 4u;
            let x0 = coopLoad<coop_mat16x16<f16, A>>(&tile_a[at_a], LINE_A);
            let x1 = coopLoad<coop_mat16x16<f16, A>>(&tile_a[at_a + 4u], LINE_A);
            let x2 = coopLoad<coop_mat16x16<f16, A>>(&tile_a[at_a + 8u], LINE_A);
            let x3 = coopLoad<coop_mat16x16<f16, A>>(&tile_a[at_a + 12u], LINE_A);
#else
            let at_a = down * LINE_A + step / 4u;
            let x0 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[at_a], LINE_A);
            let x1 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[at_a + 16u * LINE_A], LINE_A);
            let x2 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[at_a + 32u * LINE_A], LINE_A);
            let x3 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[at_a + 48u * LINE_A], LINE_A);
#endif
#if TRANSPOSE_B
            let at_b = right * LINE_B + step / 4u;
            let y0 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[at_b], LINE_B);
            let y1 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[at_b + 16u * LINE_B], LINE_B);
#if COLUMNS == 256
            let y2 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[at_b + 32u * LINE_B], LINE_B);
            let y3 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[at_b + 48u * LINE_B], LINE_B);
#endif
#else
            let at_b = step * LINE_B + right / 4u;
            let y0 = coopLoadT<coop_mat16x16<f16, B>>(&tile_b[at_b], LINE_B);
            let y1 = coopLoadT<coop_mat16x16<f16, B>>(&tile_b[at_b + 4u], LINE_B);
#if COLUMNS == 256
            let y2 = coopLoadT<coop_mat16x16<f16, B>>(&tile_b[at_b + 8u], LINE_B);
            let y3 = coopLoadT<coop_mat16x16<f16, B>>(&tile_b[at_b + 12u], LINE_B);
#endif
#endif
            c00 = coopMultiplyAdd(x0, y0, c00);
            c01 = coopMultiplyAdd(x0, y1, c01);
            c10 = coopMultiplyAdd(x1, y0, c10);
            c11 = coopMultiplyAdd(x1, y1, c11);
            c20 = coopMultiplyAdd(x2, y0, c20);
            c21 = coopMultiplyAdd(x2, y1, c21);
            c30 = coopMultiplyAdd(x3, y0, c30);
            c31 = coopMultiplyAdd(x3, y1, c31);
#if COLUMNS == 256
            c02 = coopMultiplyAdd(x0, y2, c02);
            c03 = coopMultiplyAdd(x0, y3, c03);
            c12 = coopMultiplyAdd(x1, y2, c12);
            c13 = coopMultiplyAdd(x1, y3, c13);
            c22 = coopMultiplyAdd(x2, y2, c22);
            c23 = coopMultiplyAdd(x2, y3, c23);
            c32 = coopMultiplyAdd(x3, y2, c32);
            c33 = coopMultiplyAdd(x3, y3, c33);
#endif

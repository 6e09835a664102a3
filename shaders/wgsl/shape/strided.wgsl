// The positions at which unit `i` of a strided copy of RANK dimensions is read and written.
fn places(i: u32) -> vec2<u32> {
    var at = vec2<u32>(p.x_first, p.out_first);
    var rest = i;
#if RANK == 2, 3, 4, 5, 6
    var outer = rest / p.extent_0;
    at += (rest - outer * p.extent_0) * vec2<u32>(p.x_0, p.out_0);
    rest = outer;
#endif
#if RANK == 3, 4, 5, 6
    outer = rest / p.extent_1;
    at += (rest - outer * p.extent_1) * vec2<u32>(p.x_1, p.out_1);
    rest = outer;
#endif
#if RANK == 4, 5, 6
    outer = rest / p.extent_2;
    at += (rest - outer * p.extent_2) * vec2<u32>(p.x_2, p.out_2);
    rest = outer;
#endif
#if RANK == 5, 6
    outer = rest / p.extent_3;
    at += (rest - outer * p.extent_3) * vec2<u32>(p.x_3, p.out_3);
    rest = outer;
#endif
#if RANK == 6
    outer = rest / p.extent_4;
    at += (rest - outer * p.extent_4) * vec2<u32>(p.x_4, p.out_4);
    rest = outer;
#endif
#if RANK == 1
    return at + rest * vec2<u32>(p.x_0, p.out_0);
#endif
#if RANK == 2
    return at + rest * vec2<u32>(p.x_1, p.out_1);
#endif
#if RANK == 3
    return at + rest * vec2<u32>(p.x_2, p.out_2);
#endif
#if RANK == 4
    return at + rest * vec2<u32>(p.x_3, p.out_3);
#endif
#if RANK == 5
    return at + rest * vec2<u32>(p.x_4, p.out_4);
#endif
#if RANK == 6
    return at + rest * vec2<u32>(p.x_5, p.out_5);
#endif
}

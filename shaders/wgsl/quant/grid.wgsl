// The numbers of the integers of a symmetric format, in units of the scale: `Grid` of kiln-ir.
//
// END is the number that the element of largest magnitude is scaled to at first, without its sign, SPACING the distance
// between trials of it.
#if FORMAT == Q3_K
const END: f32 = 4.0;
#include grid_whole
#endif
#if FORMAT == Q4_0
const END: f32 = 8.0;
#include grid_whole
#endif
#if FORMAT == Q5_0
const END: f32 = 16.0;
#include grid_whole
#endif
#if FORMAT == Q6_K
const END: f32 = 32.0;
#include grid_whole
#endif
#if FORMAT == IQ4_XS
#include grid_book
#endif
#if FORMAT == IQ4_NL
#include grid_book
#endif

// The trial's factor: the first of the elements of largest magnitude goes to about -END.
fn factor_of(trial: u32, extreme: f32) -> f32 {
    return exact_quotient(-(END + (f32(trial) - 8.0) * SPACING), extreme);
}

// The numbers of the grid nearest to four elements times a factor.
fn on_grid(x: vec4<f32>, factor: f32) -> vec4<f32> {
    return nearest(times_each(x, vec4<f32>(factor)));
}

// The first of the numbers with the largest magnitude.
fn extreme_of(extreme: f32, x: vec4<f32>) -> f32 {
    var y = extreme;
    y = select(y, x.x, abs(x.x) > abs(y));
    y = select(y, x.y, abs(x.y) > abs(y));
    y = select(y, x.z, abs(x.z) > abs(y));
    return select(y, x.w, abs(x.w) > abs(y));
}

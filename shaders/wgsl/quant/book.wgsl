// Numbers of a book of sixteen, plus 128, which are in BOOK_0 to BOOK_3, four to a word.
const ZERO: f32 = 128.0;
const BIAS: i32 = 0;
const FLIPPED: u32 = 0x80808080u;

// The number at the place that each byte of a word names.
fn looked_up(places: u32) -> u32 {
    let place = vec4<u32>(places) >> vec4<u32>(0u, 8u, 16u, 24u);
    let second = (place & vec4<u32>(4u)) != vec4<u32>(0u);
    let lower = select(vec4<u32>(BOOK_0), vec4<u32>(BOOK_1), second);
    let upper = select(vec4<u32>(BOOK_2), vec4<u32>(BOOK_3), second);
    let four = select(lower, upper, (place & vec4<u32>(8u)) != vec4<u32>(0u));
    let found = (four >> (vec4<u32>(8u) * (place & vec4<u32>(3u)))) & vec4<u32>(255u);
    return (found.x | (found.y << 8u)) | ((found.z << 16u) | (found.w << 24u));
}

fn all_looked_up(places: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(looked_up(places.x), looked_up(places.y), looked_up(places.z), looked_up(places.w));
}

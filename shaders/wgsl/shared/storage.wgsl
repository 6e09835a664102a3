// Elements as they are stored, four in as many words as they take. For each type T `Four_T`, and `load_T`, which makes `Numbers_T` of
// them: floats, or integers with a sign or without. For types of floats also one element in the word that holds it: `One_T`,
// `PER_T` (elements in a word) and `element_T`. Sources say `load_${STORED}`. This is plain WGSL, which asks for no arithmetic
// on f16.

alias Four_f32 = vec4<f32>;
alias Numbers_f32 = vec4<f32>;
alias One_f32 = f32;
const PER_f32: u32 = 1u;

fn load_f32(x: Four_f32) -> vec4<f32> {
    return x;
}

fn element_f32(x: One_f32, at: u32) -> f32 {
    return x;
}

alias Four_f16 = vec2<u32>;
alias Numbers_f16 = vec4<f32>;
alias One_f16 = u32;
const PER_f16: u32 = 2u;

fn load_f16(x: Four_f16) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(x.x), unpack2x16float(x.y));
}

fn element_f16(word: One_f16, at: u32) -> f32 {
    let two = unpack2x16float(word);
    return select(two.x, two.y, at % 2u == 1u);
}

alias Four_bf16 = vec2<u32>;
alias Numbers_bf16 = vec4<f32>;
alias One_bf16 = u32;
const PER_bf16: u32 = 2u;

fn load_bf16(x: Four_bf16) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4<u32>(x.x << 16u, x.x & 0xffff0000u, x.y << 16u, x.y & 0xffff0000u));
}

fn element_bf16(word: One_bf16, at: u32) -> f32 {
    return bitcast<f32>(select(word << 16u, word & 0xffff0000u, at % 2u == 1u));
}

alias Four_i32 = vec4<i32>;
alias Numbers_i32 = vec4<i32>;

fn load_i32(x: Four_i32) -> vec4<i32> {
    return x;
}

alias Four_u32 = vec4<u32>;
alias Numbers_u32 = vec4<u32>;

fn load_u32(x: Four_u32) -> vec4<u32> {
    return x;
}

alias Four_i8 = u32;
alias Numbers_i8 = vec4<i32>;

fn load_i8(x: Four_i8) -> vec4<i32> {
    let word = bitcast<i32>(x);
    return vec4<i32>(word << 24u, word << 16u, word << 8u, word) >> vec4<u32>(24u);
}

alias Four_u8 = u32;
alias Numbers_u8 = vec4<u32>;

fn load_u8(x: Four_u8) -> vec4<u32> {
    return vec4<u32>(x, x >> 8u, x >> 16u, x >> 24u) & vec4<u32>(0xffu);
}

alias Four_bool = u32;
alias Numbers_bool = vec4<u32>;

fn load_bool(x: Four_bool) -> vec4<u32> {
    return min(load_u8(x), vec4<u32>(1u));
}

//! Every text that the sources can become is a sound shader, and translates to what Vulkan, Metal and DX12 take.

use std::collections::HashSet;

use kiln_ir::graph::{Fetch, Source};
use kiln_ir::op::{Comparison, ElementwiseKind, IntegerFunction, Reduction};
use kiln_ir::{DType, QuantFormat};
use kiln_shaders::elementwise::{Call, Chain, Read};
use kiln_shaders::{
    ARITHMETIC, Access, COMPARE, Capabilities, DEQUANTIZE, Head, KERNELS, Kernel, QUANT_MATVEC, REDUCE_ROWS, Symbolic,
    Together, constant, state_words,
};
use naga::back::{hlsl, msl, spv};
use naga::valid;

/// Panics if the value of a constant expression is infinite or not a number: WGSL forbids that, and browsers refuse such a text, but naga
/// evaluates no `bitcast` of constants.
fn refuse_special_constants(what: &str, text: &str) {
    let number = |word: &str| {
        let digits = word.trim_end_matches('u');
        digits.strip_prefix("0x").map_or_else(|| digits.parse().ok(), |hex| u32::from_str_radix(hex, 16).ok())
    };
    let constant = |name: &str| {
        let begin = format!("const {name}: u32");
        let value = |line: &str| Some(line.strip_prefix(&begin)?.trim_start().strip_prefix('=')?.trim().to_owned());
        text.lines().find_map(|line| number(value(line)?.strip_suffix(';')?))
    };
    for (_, after) in text.match_indices("bitcast<f32>(").map(|(at, call)| text.split_at(at + call.len())) {
        let word = after.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
        if after[word.len()..].starts_with(')')
            && let Some(bits) = number(word).or_else(|| constant(word))
        {
            assert!(
                f32::from_bits(bits).is_finite(),
                "{what}: the constant bitcast<f32>({word}) is not finite\n{text}"
            );
        }
    }
}

#[test]
fn constants_that_are_not_finite_are_refused() {
    let refused = |text: &str| std::panic::catch_unwind(|| refuse_special_constants("a text", text)).is_err();
    let constants = "const NAN_BITS: u32=0x7fc00000u;\nconst HIDDEN: u32=0x7f7fffffu;\n";
    for (text, is_refused) in [
        ("return bitcast<f32>(NAN_BITS);", true),
        ("return bitcast<f32>(0xff800000u);", true),
        ("return bitcast<f32>(2139095040u);", true),
        ("return bitcast<f32>(HIDDEN);", false),
        ("return bitcast<f32>(bits|NAN_BITS);", false),
        ("return bitcast<f32>(bits);", false),
    ] {
        assert_eq!(refused(&format!("{constants}{text}")), is_refused, "{text}");
    }
}

/// Parses, validates and translates a text, and compares what it declares with its head.
fn check(what: &str, text: &str, head: &Head, capabilities: Capabilities) {
    refuse_special_constants(what, text);
    let module = naga::front::wgsl::parse_str(text)
        .unwrap_or_else(|error| panic!("{what}: {}\n{text}", error.emit_to_string(text)));
    // `unpack2x16float` is plain WGSL; naga asks for it because OpenGL may lack it.
    let mut allowed = valid::Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    if capabilities.subgroup {
        allowed |= valid::Capabilities::SUBGROUP;
    }
    if head.cooperative {
        allowed |= valid::Capabilities::SHADER_FLOAT16 | valid::Capabilities::COOPERATIVE_MATRIX;
    }
    if capabilities.immediates {
        allowed |= valid::Capabilities::IMMEDIATES;
    }
    let info = valid::Validator::new(valid::ValidationFlags::all(), allowed)
        .validate(&module)
        .unwrap_or_else(|error| panic!("{what}: {}\n{text}", error.emit_to_string(text)));

    let entry = module.entry_points.iter().find(|entry| entry.name == "main").expect("an entry point `main`");
    let [size, 1, 1] = entry.workgroup_size else { panic!("{what}: {:?}", entry.workgroup_size) };
    let whole = kiln_shaders::WORKGROUP;
    assert!(size == whole || head.cooperative && size == whole / 2, "{what}: {size} invocations");
    let mut layouter = naga::proc::Layouter::default();
    layouter.update(module.to_ctx()).unwrap_or_else(|error| panic!("{what}: {error}"));
    let shared = module.global_variables.iter().filter(|(_, global)| global.space == naga::AddressSpace::WorkGroup);
    let shared: u32 = shared.map(|(_, global)| layouter[global.ty].size).sum();
    // GPUs with cooperative matrices offer this much; a driver was seen to hang beyond it.
    assert!(!head.cooperative || shared <= 48 * 1024, "{what}: {shared} bytes for a workgroup");

    let mut bindings = Vec::new();
    for (_, global) in module.global_variables.iter() {
        if let naga::AddressSpace::Storage { access } = global.space {
            let number = global.binding.as_ref().expect("a binding").binding as usize;
            let write = access.contains(naga::StorageAccess::STORE);
            bindings.push((number, if write { Access::Write } else { Access::Read }));
        }
    }
    bindings.sort_by_key(|binding| binding.0);
    let declared: Vec<_> = head.bindings.iter().map(|binding| binding.access).enumerate().collect();
    assert_eq!(bindings, declared, "{what}");

    spirv(what, &module, &info);
    if head.cooperative {
        // Metal has blocks of 8 x 8 alone, and Direct3D none.
        return;
    }
    metal(what, &module, &info, head);
    direct3d(what, &module, &info);
}

fn spirv(what: &str, module: &naga::Module, info: &valid::ModuleInfo) {
    let options = spv::Options { lang_version: (1, 3), ..spv::Options::default() };
    let pipeline = spv::PipelineOptions { shader_stage: naga::ShaderStage::Compute, entry_point: "main".into() };
    spv::write_vec(module, info, &options, Some(&pipeline)).unwrap_or_else(|error| panic!("{what}: {error}"));
}

fn metal(what: &str, module: &naga::Module, info: &valid::ModuleInfo, head: &Head) {
    let mut resources = msl::EntryPointResources { sizes_buffer: Some(30), ..Default::default() };
    resources.immediates_buffer = Some(29);
    for number in 0..=head.bindings.len() {
        let target = msl::BindTarget { buffer: Some(number as u8), mutable: true, ..Default::default() };
        resources.resources.insert(naga::ResourceBinding { group: 0, binding: number as u32 }, target);
    }
    let options = msl::Options {
        lang_version: (2, 4),
        per_entry_point_map: [("main".to_owned(), resources)].into(),
        ..Default::default()
    };
    msl::write_string(module, info, &options, &msl::PipelineOptions::default())
        .unwrap_or_else(|error| panic!("{what}: {error}"));
}

fn direct3d(what: &str, module: &naga::Module, info: &valid::ModuleInfo) {
    let immediates = hlsl::BindTarget { register: 0, space: 1, ..Default::default() };
    let options = hlsl::Options {
        shader_model: hlsl::ShaderModel::V6_0,
        immediates_target: Some(immediates),
        fake_missing_bindings: true,
        ..Default::default()
    };
    let mut text = String::new();
    hlsl::Writer::new(&mut text, &options, &hlsl::PipelineOptions::default())
        .write(module, info, None)
        .unwrap_or_else(|error| panic!("{what}: {error}"));
}

/// Every combination of one value for each constant.
fn combinations(constants: &[(String, Vec<u32>)]) -> Vec<Vec<(&str, u32)>> {
    constants.iter().fold(vec![Vec::new()], |sets, (name, values)| {
        assert!(!values.is_empty(), "{name} has no values to test");
        sets.iter()
            .flat_map(|set| values.iter().map(move |&value| [set.as_slice(), &[(name.as_str(), value)]].concat()))
            .collect()
    })
}

/// The number in the environment variable `KILN_SAMPLE`, at least 1.
fn sample() -> usize {
    std::env::var("KILN_SAMPLE").ok().and_then(|n| n.parse().ok()).unwrap_or(1).max(1)
}

/// With `KILN_SAMPLE` every pair of values of two constants is in some variant that is checked, and so is every value with every set
/// of capabilities, but not every combination of three: a kernel has up to thousands.
#[test]
fn every_kernel_is_sound_in_every_variant() {
    let all = sample() == 1;
    for kernel in KERNELS {
        let head = kernel.head();
        assert!(!head.bindings.is_empty(), "{} has no buffers", kernel.name);
        let mut seen = HashSet::new();
        let mut is_new = |capabilities: u32, constants: &[(&str, u32)]| {
            let values: Vec<_> = constants.iter().copied().chain([("capabilities", capabilities)]).collect();
            let pairs = values.iter().enumerate().flat_map(|(i, a)| values[i..].iter().map(move |b| (*a, *b)));
            pairs.fold(false, |any, ((a, x), (b, y))| seen.insert((a.to_owned(), x, b.to_owned(), y)) || any)
        };
        for (number, capabilities) in (0..).zip(Capabilities::all()) {
            for constants in combinations(&head.constants) {
                if is_new(number, &constants) || all {
                    let what = format!("{} with {constants:?} and {capabilities:?}", kernel.name);
                    check(&what, &kernel.text(&constants, capabilities), &head, capabilities);
                }
            }
        }
    }
}

#[test]
fn kernels_that_run_together_are_sound() {
    let check = |what: &str, kernels: &[_]| {
        // The first binding is the same memory in all of them.
        let together = Together::new(kernels, |[_, a], [_, b]| a == 0 && b == 0);
        let Some(together) = together else { return };
        let head = together.head();
        // Immediates are 64 words at most.
        for capabilities in [Capabilities::PLAIN, Capabilities { subgroup: true, immediates: head.params.len() < 64 }] {
            check(what, &together.text(capabilities), &head, capabilities);
        }
    };
    for kernel in KERNELS {
        let constants: Vec<_> = combinations(&kernel.head().constants)
            .into_iter()
            .map(|set| set.into_iter().map(|(name, value)| (&*name.to_owned().leak(), value)).collect::<Vec<_>>())
            .collect();
        let ends = [constants.first(), constants.last()].map(|set| (*kernel, set.unwrap().clone()));
        let [first, last] = &ends;
        check(&format!("{} and another", kernel.name), &[first.clone(), last.clone(), first.clone()]);
    }
    for (format, normed) in QuantFormat::ALL.into_iter().flat_map(|format| [(format, 0), (format, 1)]) {
        let constants = |format| vec![constant(format), ("ROWS", 1), ("LANES", 64), ("ADDS", 0), ("NORMED", normed)];
        let kernels = [QuantFormat::Q4K, QuantFormat::Q4K, format].map(|format| (QUANT_MATVEC, constants(format)));
        check(&format!("products with Q4_K and {format:?}"), &kernels);
        // x takes the place of gamma where nothing is normalised.
        let memory = |at: usize| if at == 3 && normed == 0 { 0 } else { at };
        let is_shared = |a: usize, b: usize| memory(a) == memory(b) && [0, 3].contains(&memory(a));
        let together = Together::new(&kernels, |[_, a], [_, b]| is_shared(a, b)).unwrap();
        let first = if normed == 0 { vec![[0, 0], [0, 1], [0, 2]] } else { vec![[0, 0], [0, 1], [0, 2], [0, 3]] };
        assert_eq!(together.bindings(), [first, vec![[1, 1], [1, 2], [2, 1], [2, 2]]].concat());
        let text = together.text(Capabilities::PLAIN);
        // What all have in common is there once, and workgroup memory never twice.
        assert_eq!(text.matches("fn group_number(").count(), 1, "{text}");
        assert_eq!(text.matches("var<workgroup> highs").count(), 1, "{text}");
        assert_eq!(text.matches("fn raw_of_").count(), 3, "{text}");
    }
    assert!(Together::new(&[(Kernel::custom("own", ""), Vec::new())], |_, _| false).is_none());
}

/// With `KILN_SAMPLE` the sets of capabilities take turns, so that each meets every function, every way to read and every type.
#[test]
fn every_element_wise_function_is_sound_for_every_kind_of_operand() {
    let fetches = [Fetch::Whole, Fetch::Scalar, Fetch::Vectors, Fetch::Elements];
    let sets: Vec<_> = Capabilities::all().collect();
    let turns = if sample() == 1 { 1 } else { sets.len() };
    for (function, &kind) in ElementwiseKind::ALL.iter().enumerate() {
        for (way, fetch) in fetches.into_iter().enumerate() {
            // The last one of each type of floats.
            for (ty, &last) in DType::ALL.iter().filter(|dtype| dtype.is_float()).enumerate() {
                let stored = |i: usize| if i + 1 == kind.arity() { last } else { DType::F32 };
                let inputs = (0..kind.arity()).map(|i| Read { fetch, stored: stored(i) }).collect();
                let calls = vec![Call { kind, operands: (0..kind.arity()).map(Source::Input).collect() }];
                let chain = Chain { inputs, calls, outputs: vec![0] };
                let taken =
                    sets.iter().enumerate().filter(|(set, _)| (function + way + ty + set).is_multiple_of(turns));
                for &capabilities in taken.map(|(_, capabilities)| capabilities) {
                    let what = format!("{} of {fetch:?}, {last}, with {capabilities:?}", kind.name());
                    check(&what, &chain.text(capabilities), &chain.head(), capabilities);
                }
            }
        }
    }
}

#[test]
fn a_chain_reads_results_of_earlier_calls() {
    let calls = vec![
        Call { kind: ElementwiseKind::Add, operands: vec![Source::Input(0), Source::Input(1)] },
        Call { kind: ElementwiseKind::Clip, operands: vec![Source::Result(0)] },
        Call { kind: ElementwiseKind::Mul, operands: vec![Source::Result(1), Source::Result(0)] },
    ];
    let inputs = [Fetch::Whole, Fetch::Vectors].map(|fetch| Read { fetch, stored: DType::F32 }).to_vec();
    let chain = Chain { inputs, calls, outputs: vec![2, 0] };
    let text = chain.text(Capabilities::PLAIN);
    check("a chain", &text, &chain.head(), Capabilities::PLAIN);
    assert!(text.contains("let r1 = op_clip(r0, p.lo1, p.hi1);"), "{text}");
    let params: Vec<String> = chain.head().params.into_iter().map(|param| param.0).collect();
    assert_eq!(params, ["n", "length1", "first1", "lo1", "hi1"]);
}

/// The constants of a module that are u32, by name.
fn constants_of(module: &naga::Module) -> Vec<(String, u32)> {
    let value = |constant: &naga::Constant| match module.global_expressions[constant.init] {
        naga::Expression::Literal(naga::Literal::U32(value)) => constant.name.clone().map(|name| (name, value)),
        _ => None,
    };
    module.constants.iter().filter_map(|(_, constant)| value(constant)).collect()
}

/// Checks that a text declares every value of an enumeration by its name, and the one that it is compiled for.
fn declares<T: Symbolic + std::fmt::Debug>(kernel: Kernel) {
    for &value in T::ALL {
        let constants = [constant(value), ("WIDTH", 4), ("TEAM", 256)];
        let text = kernel.text(&constants, Capabilities::PLAIN);
        let module =
            naga::front::wgsl::parse_str(&text).unwrap_or_else(|error| panic!("{}", error.emit_to_string(&text)));
        let found = constants_of(&module);
        let of = |name: &str| found.iter().find(|(other, _)| other == name).map(|(_, number)| *number);
        for &other in T::ALL {
            assert_eq!(of(&other.symbol()), Some(constant(other).1), "{other:?}\n{text}");
        }
        assert_eq!(of(T::CONSTANTS[0]), of(&value.symbol()), "{value:?}\n{text}");
        let number = format!("const {}: u32 = {};", T::CONSTANTS[0], value.symbol());
        assert!(text.contains(&number), "{value:?}\n{text}");
    }
}

#[test]
fn the_text_names_the_values_of_the_tables() {
    declares::<Comparison>(COMPARE);
    declares::<IntegerFunction>(ARITHMETIC);
    declares::<Reduction>(REDUCE_ROWS);
    declares::<QuantFormat>(DEQUANTIZE);
    let symbols: Vec<String> = Reduction::ALL.iter().map(|reduction| reduction.symbol()).collect();
    assert_eq!(symbols[..3], ["REDUCE_SUM", "REDUCE_MEAN", "REDUCE_MAX"]);
    assert_eq!(QuantFormat::ALL.map(Symbolic::symbol)[..3], ["Q8_0", "Q4_0", "Q4_1"]);
}

#[test]
fn states_of_reductions_have_the_words_that_are_declared() {
    for &reduction in Reduction::ALL {
        let constants = [constant(reduction), ("WIDTH", 1), ("TEAM", 256), ("INTO", 1)];
        let module = naga::front::wgsl::parse_str(&REDUCE_ROWS.text(&constants, Capabilities::PLAIN)).unwrap();
        let out = module.global_variables.iter().find(|(_, global)| global.name.as_deref() == Some("out")).unwrap().1;
        let naga::TypeInner::Array { stride, .. } = module.types[out.ty].inner else { panic!("{reduction:?}") };
        assert_eq!(stride as usize, 4 * state_words(reduction), "{reduction:?}");
    }
}

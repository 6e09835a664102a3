//! Sources that describe themselves, and the text that they become.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::symbols;

/// The features of a device beyond plain WebGPU that the text of a kernel depends on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Capabilities {
    /// Sums and maxima within a subgroup.
    pub subgroup: bool,
    /// Parameters as immediates; otherwise they are a uniform buffer, the last binding.
    pub immediates: bool,
}

impl Capabilities {
    /// Plain WebGPU, as every browser has it.
    pub const PLAIN: Self = Self { subgroup: false, immediates: false };

    /// Every set of capabilities.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..4).map(|bits| Self { subgroup: bits & 1 != 0, immediates: bits & 2 != 0 })
    }
}

/// A kernel's use of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The kernel reads it.
    Read,
    /// The kernel writes it, and may read it after that.
    Write,
}

/// A buffer that a kernel works on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// Its name in the source.
    pub name: String,
    /// Its type there.
    pub ty: String,
    /// The use of the buffer.
    pub access: Access,
}

/// The head of a source, which describes it.
///
/// A head consists of lines `#input name: type`, `#output name: type` (bindings, numbered in this order),
/// `#param name: type` (one 32-bit word each, in this order) and `#constant NAME = values` (what has to be baked in, with
/// the values that tests compile it for: numbers; or names, or `all`, where the constant is an enumeration), and perhaps
/// `#trusted why` and `#cooperative how`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Head {
    /// Buffers, in the order of their numbers.
    pub bindings: Vec<Binding>,
    /// Names and types of the parameters, one word each.
    pub params: Vec<(String, String)>,
    /// Constants, with the values that they are tested with.
    pub constants: Vec<(String, Vec<u32>)>,
    /// Whether it needs no checks at run time: with the parameters that it is given, every index is within its buffer or
    /// array, and every loop ends. Its line says why.
    pub trusted: bool,
    /// Whether it multiplies cooperative matrices: 16 x 16 of f16 with sums in f32, in subgroups of 32. It runs only where the
    /// device has them, and arithmetic on f16.
    pub cooperative: bool,
}

/// Reads the head of a source.
pub(crate) fn head(source: &str) -> Head {
    let mut head = Head::default();
    for line in source.lines() {
        let Some(line) = line.strip_prefix('#') else { continue };
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let typed = || rest.split_once(':').map(|(name, ty)| (name.trim().to_owned(), ty.trim().to_owned()));
        match word {
            "input" | "output" => {
                let access = if word == "input" { Access::Read } else { Access::Write };
                head.bindings.extend(typed().map(|(name, ty)| Binding { name, ty, access }));
            }
            "param" => head.params.extend(typed()),
            "trusted" => head.trusted = true,
            "cooperative" => head.cooperative = true,
            "constant" => {
                if let Some((name, values)) = rest.split_once('=') {
                    let name = name.trim();
                    let values = match (values.trim(), symbols::symbols(name)) {
                        ("all", Some(symbols)) => (0..).zip(symbols).map(|(number, _)| number).collect(),
                        (values, _) => {
                            values.split(',').filter_map(|value| symbols::value(name, value.trim())).collect()
                        }
                    };
                    head.constants.push((name.to_owned(), values));
                }
            }
            _ => {}
        }
    }
    head
}

/// Declares what a head describes.
pub(crate) fn declarations(head: &Head, capabilities: Capabilities) -> String {
    let mut text = String::new();
    if head.cooperative {
        text.push_str("enable f16;\nenable wgpu_cooperative_matrix;\n");
    }
    for (number, Binding { name, ty, access }) in head.bindings.iter().enumerate() {
        let access = if *access == Access::Read { "read" } else { "read_write" };
        let _ = writeln!(text, "@group(0) @binding({number}) var<storage, {access}> {name}: {ty};");
    }
    if !head.params.is_empty() {
        text.push_str("struct Params {\n");
        for (name, ty) in &head.params {
            let _ = writeln!(text, "    {name}: {ty},");
        }
        text.push_str("}\n");
        let _ = match capabilities.immediates {
            true => writeln!(text, "var<immediate> p: Params;"),
            false => writeln!(text, "@group(0) @binding({}) var<uniform> p: Params;", head.bindings.len()),
        };
    }
    text
}

/// Turns a source into WGSL: its head into declarations, `#if NAME`, `#if NAME == values` (any of them), `#else` and
/// `#endif` by the constants, `#include name` by the text that `find` has of this name, and `${NAME}` by the value of the
/// constant. Values are names where the constant is an enumeration, and numbers elsewhere. The lines from `#for i NAME` to `#endfor` are
/// repeated as many times as the value of the constant or the number NAME says, with `i` as a constant from 0 on. `#set NAME n` makes a
/// constant of a number for the rest of the source.
///
/// A name that is unknown stays as it is, which no shader compiler accepts: a mistake in a source is found by the tests,
/// which compile every source with every value that its head names.
pub(crate) fn expand(
    source: &str,
    constants: &mut BTreeMap<String, u32>,
    find: &impl Fn(&str) -> Option<&'static str>,
    out: &mut String,
) {
    expand_within(None, source, constants, find, out);
}

/// The constant of a repetition, and those around it. (To remove one from the map would be 3 KB of modules for browsers.)
struct Repetition<'a> {
    name: &'a str,
    value: u32,
    outer: Option<&'a Self>,
}

/// The value of a constant.
fn value_of(name: &str, mut within: Option<&Repetition<'_>>, constants: &BTreeMap<String, u32>) -> Option<u32> {
    while let Some(repetition) = within {
        if repetition.name == name {
            return Some(repetition.value);
        }
        within = repetition.outer;
    }
    constants.get(name).copied()
}

fn expand_within(
    within: Option<&Repetition<'_>>,
    source: &str,
    constants: &mut BTreeMap<String, u32>,
    find: &impl Fn(&str) -> Option<&'static str>,
    out: &mut String,
) {
    // Whether the lines of each open condition are taken.
    let mut taken: Vec<bool> = Vec::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        let Some(directive) = line.trim_start().strip_prefix('#') else {
            if taken.iter().all(|&taken| taken) {
                substitute(line, within, constants, out);
                out.push('\n');
            }
            continue;
        };
        let (word, rest) = directive.split_once(' ').unwrap_or((directive, ""));
        match word {
            "if" => {
                let (name, wanted) = rest.split_once("==").map_or((rest, None), |(name, value)| (name, Some(value)));
                let value = value_of(name.trim(), within, constants).unwrap_or(0);
                let wanted =
                    wanted.map(|list| list.split(',').map(|wanted| symbols::value(name.trim(), wanted.trim())));
                if wanted.clone().is_some_and(|mut wanted| wanted.any(|wanted| wanted.is_none())) {
                    out.push_str(line);
                    out.push('\n');
                }
                taken.push(wanted.map_or(value != 0, |mut wanted| wanted.any(|wanted| wanted == Some(value))));
            }
            "else" => {
                if let Some(last) = taken.last_mut() {
                    *last = !*last;
                }
            }
            "endif" => drop(taken.pop()),
            "include" if taken.iter().all(|&taken| taken) => match find(rest.trim()) {
                Some(included) => expand_within(within, included, constants, find, out),
                None => {
                    out.push_str(line);
                    out.push('\n');
                }
            },
            "for" => {
                let body = repeated(&mut lines);
                let (name, count) = rest.trim().split_once(' ').unwrap_or_default();
                if taken.contains(&false) {
                    continue;
                }
                let Some(count) = value_of(count, within, constants).or_else(|| count.parse().ok()) else {
                    out.push_str(line);
                    out.push('\n');
                    continue;
                };
                for value in 0..count {
                    let inner = Repetition { name, value, outer: within };
                    expand_within(Some(&inner), &body, constants, find, out);
                }
            }
            "set" if taken.iter().all(|&taken| taken) => {
                let (name, value) = rest.trim().split_once(' ').unwrap_or_default();
                match value.parse() {
                    Ok(value) => drop(constants.insert(name.to_owned(), value)),
                    Err(_) => {
                        out.push_str(line);
                        out.push('\n');
                    }
                }
            }
            _ => {}
        }
    }
}

/// The lines up to the end of a repetition that has begun.
fn repeated<'a>(lines: &mut impl Iterator<Item = &'a str>) -> String {
    let mut body = String::new();
    let mut depth = 1;
    for line in lines {
        let word = line.trim_start().split(' ').next();
        depth += usize::from(word == Some("#for"));
        depth -= usize::from(word == Some("#endfor"));
        if depth == 0 {
            break;
        }
        body.push_str(line);
        body.push('\n');
    }
    body
}

fn substitute(line: &str, within: Option<&Repetition<'_>>, constants: &BTreeMap<String, u32>, out: &mut String) {
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("${") {
        out.push_str(before);
        let named =
            after.split_once('}').and_then(|(name, after)| Some((name, value_of(name, within, constants)?, after)));
        match named {
            Some((name, value, after)) => {
                out.push_str(&symbols::text(name, value));
                rest = after;
            }
            None => {
                out.push_str("${");
                rest = after;
            }
        }
    }
    out.push_str(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(source: &str, constants: &[(&str, u32)]) -> String {
        let mut constants = constants.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        let mut out = String::new();
        expand(source, &mut constants, &|name| (name == "other").then_some("included ${A}\n"), &mut out);
        out
    }

    #[test]
    fn conditions_nest_and_names_are_replaced() {
        let source = "#constant A = 1\n#if A\n a ${A}\n#if B == 2\n b\n#else\n c ${B}\n#endif\n#else\n d\n#endif\ne";
        assert_eq!(expanded(source, &[("A", 7), ("B", 2)]), " a 7\n b\ne\n");
        assert_eq!(expanded(source, &[("A", 7), ("B", 3)]), " a 7\n c 3\ne\n");
        assert_eq!(expanded(source, &[("A", 0), ("B", 2)]), " d\ne\n");
        assert_eq!(expanded("#if A == 1, 3\n a\n#else\n b\n#endif", &[("A", 3)]), " a\n");
        assert_eq!(expanded("#if A == 1, 3\n a\n#else\n b\n#endif", &[("A", 2)]), " b\n");
        assert_eq!(expanded("${UNKNOWN} ${A}", &[("A", 1)]), "${UNKNOWN} 1\n");
        assert_eq!(expanded("#if A == B\n a\n#endif", &[("A", 1)]), "#if A == B\n");
        let source = "#for i A\n#for j 2\n#if j\n x${i}${j}\n#endif\n#endfor\n y${i}\n#endfor\nz${i}";
        assert_eq!(expanded(source, &[("A", 2)]), " x01\n y0\n x11\n y1\nz${i}\n");
        assert_eq!(expanded("#if A\n#for i 3\n a\n#endfor\n#endif\nb", &[("A", 0)]), "b\n");
        assert_eq!(expanded("#for i NONE\n a\n#endfor\nb", &[("A", 0)]), "#for i NONE\nb\n");
        let source = "#if A\n#set B 2\n#else\n#set B 3\n#endif\n#for i B\n ${i}\n#endfor\n#set C x";
        assert_eq!(expanded(source, &[("A", 1)]), " 0\n 1\n#set C x\n");
        assert_eq!(expanded(source, &[("A", 0)]), " 0\n 1\n 2\n#set C x\n");
        assert_eq!(expanded("#include other\n#include missing", &[("A", 1)]), "included 1\n#include missing\n");
    }

    #[test]
    fn a_head_declares_bindings_in_order_and_parameters_as_words() {
        assert!(!head("#input a: array<f32>\n// trusted\n").trusted);
        let source = "#trusted it reads nothing\n#input a: array<f32>\n#output b: array<u32>\n#param n: u32\n#param eps: f32\n#constant T = 8, 16\nfn f() {}";
        let head = head(source);
        assert_eq!(head.constants, [("T".to_owned(), vec![8, 16])]);
        assert!(head.trusted);
        let plain = declarations(&head, Capabilities::PLAIN);
        assert!(plain.contains("@binding(1) var<storage, read_write> b: array<u32>;"), "{plain}");
        assert!(plain.contains("@group(0) @binding(2) var<uniform> p: Params;"), "{plain}");
        let native = declarations(&head, Capabilities { immediates: true, ..Capabilities::PLAIN });
        assert!(native.contains("var<immediate> p: Params;"), "{native}");
    }
}

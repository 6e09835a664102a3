//! Several kernels in one launch, each in workgroups of its own.
//!
//! The texts of the kernels become one module. Items that all of them have in common, such as functions of their arguments alone,
//! stay single; an item that uses a buffer or a parameter, or whose text differs, is there once for each kernel, its name
//! with the kernel's number. Workgroup memory is shared, because a workgroup runs only one of the kernels.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::template::{self, Access, Binding, Capabilities, Head};
use crate::{Kernel, all_constants, find, symbols};

/// A kernel with its constants.
pub type Configured = (Kernel, Vec<(&'static str, u32)>);

/// Kernels that run side by side. Its parameters are those of each kernel in turn, followed by the number of workgroups of the first,
/// of the first two, and so on, without that of all.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Together {
    /// Each kernel, with the binding of the launch for each of its own.
    members: Vec<(Configured, Vec<usize>)>,
}

impl Together {
    /// Joins kernels. `shares(a, b)` says whether two bindings are the same memory, each as the number of the kernel and of the
    /// binding in it; those that are only read, as the same type, are then one binding of the launch. `None` for a kernel that
    /// cannot run beside others: one of a program, or with cooperative matrices.
    pub fn new(kernels: &[Configured], shares: impl Fn([usize; 2], [usize; 2]) -> bool) -> Option<Self> {
        let mut bound: Vec<([usize; 2], Binding)> = Vec::new();
        let mut members = Vec::new();
        for (number, configured) in kernels.iter().enumerate() {
            let head = configured.0.head();
            if configured.0.custom || head.cooperative {
                return None;
            }
            let mut slots = Vec::new();
            for (at, binding) in head.bindings.into_iter().enumerate() {
                let is_same = |(other, known): &([usize; 2], Binding)| {
                    let reads = known.access == Access::Read && binding.access == Access::Read;
                    let means_same = kernels[other[0]] == *configured || is_plain(&binding.ty);
                    reads && known.ty == binding.ty && means_same && shares(*other, [number, at])
                };
                slots.push(bound.iter().position(is_same).unwrap_or(bound.len()));
                if slots.last() == Some(&bound.len()) {
                    bound.push(([number, at], binding));
                }
            }
            members.push((configured.clone(), slots));
        }
        Some(Self { members })
    }

    /// The name of the first kernel.
    pub fn name(&self) -> &'static str {
        self.members.first().map_or("together", |((kernel, _), _)| kernel.name)
    }

    /// For each binding of the launch a kernel's number and the number of the binding in it.
    pub fn bindings(&self) -> Vec<[usize; 2]> {
        let mut bindings = Vec::new();
        for (number, (_, slots)) in self.members.iter().enumerate() {
            for (at, &slot) in slots.iter().enumerate() {
                if slot == bindings.len() {
                    bindings.push([number, at]);
                }
            }
        }
        bindings
    }

    /// Buffers and parameters of the launch.
    pub fn head(&self) -> Head {
        let heads: Vec<Head> = self.members.iter().map(|((kernel, _), _)| kernel.head()).collect();
        let named = |(slot, [number, at]): (usize, [usize; 2])| {
            let binding = heads[number].bindings[at].clone();
            Binding { name: format!("buffer_{slot}"), ..binding }
        };
        let own = heads.iter().enumerate().flat_map(|(number, head)| {
            head.params.iter().map(move |(name, ty)| (format!("{name}_{number}"), ty.clone()))
        });
        let ends = (1..heads.len()).map(|number| (format!("end_{number}"), "u32".to_owned()));
        Head {
            bindings: self.bindings().into_iter().enumerate().map(named).collect(),
            params: own.chain(ends).collect(),
            trusted: heads.iter().all(|head| head.trusted),
            ..Head::default()
        }
    }

    /// The WGSL for a device of these capabilities. The entry point is `main`.
    pub fn text(&self, capabilities: Capabilities) -> String {
        let texts: Vec<String> =
            self.members.iter().map(|((kernel, constants), _)| body(kernel, constants, capabilities)).collect();
        let heads: Vec<Head> = self.members.iter().map(|((kernel, _), _)| kernel.head()).collect();
        let all: Vec<Vec<Item<'_>>> = texts.iter().map(|text| items(text)).collect();

        let mut own: BTreeSet<&str> = BTreeSet::from(["p", "main"]);
        own.extend(heads.iter().flat_map(|head| &head.bindings).map(|binding| binding.name.as_str()));
        let mut first = BTreeMap::new();
        for item in all.iter().flatten() {
            if *first.entry(item.name).or_insert(item.text) != item.text {
                own.insert(item.name);
            }
        }
        // Until no more items use what each kernel has for itself.
        loop {
            let known = own.len();
            for item in all.iter().flatten() {
                let uses = || words(item.text).any(|word| word.is_name && own.contains(word.text));
                if !own.contains(item.name) && uses() {
                    own.insert(item.name);
                }
            }
            if own.len() == known {
                break;
            }
        }

        let mut head = self.head();
        let mut module = String::new();
        let mut entry = Entry::default();
        let mut written = BTreeSet::new();
        for (number, (items, (_, slots))) in all.iter().zip(&self.members).enumerate() {
            let names: BTreeMap<&str, usize> = heads[number]
                .bindings
                .iter()
                .zip(slots)
                .map(|(binding, &slot)| (binding.name.as_str(), slot))
                .collect();
            let rename = |text: &str| renamed(text, &own, &names, number);
            for (binding, [member, _]) in head.bindings.iter_mut().zip(self.bindings()) {
                if member == number {
                    binding.ty = rename(&binding.ty);
                }
            }
            for item in items {
                if item.name == "main" {
                    entry.add(item.text, number, rename, &mut module);
                } else if own.contains(item.name) {
                    module.push_str(&rename(item.text));
                } else if written.insert(item.name) {
                    module.push_str(item.text);
                }
                module.push('\n');
            }
        }
        template::declarations(&head, capabilities) + &module + &entry.text()
    }
}

/// Whether a type is made of types of WGSL alone, not of those that a source declares.
fn is_plain(ty: &str) -> bool {
    words(ty).all(|word| !word.is_name || ["array", "vec2", "vec4", "f32", "u32"].contains(&word.text))
}

/// The text of a kernel without the declarations of its head.
fn body(kernel: &Kernel, constants: &[(&'static str, u32)], capabilities: Capabilities) -> String {
    let mut text = String::new();
    symbols::declarations(constants, &mut text);
    template::expand(kernel.source, &mut all_constants(constants, capabilities), &find, &mut text);
    text
}

/// A declaration of a module.
struct Item<'a> {
    name: &'a str,
    text: &'a str,
}

/// The declarations of a text, each to the semicolon or the brace that ends it.
fn items(text: &str) -> Vec<Item<'_>> {
    let (mut items, mut begin, mut depth) = (Vec::new(), 0, 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b';' => {}
            _ => continue,
        }
        if depth == 0 {
            let text = text[begin..=at].trim();
            begin = at + 1;
            items.extend(name_of(text).map(|name| Item { name, text }));
        }
    }
    items
}

/// The name that an item declares: behind its keyword, and the address space of a variable.
fn name_of(item: &str) -> Option<&str> {
    let mut words = words(item)
        .filter(|word| word.is_name)
        .map(|word| word.text)
        .skip_while(|word| !["fn", "struct", "const", "alias", "var"].contains(word));
    let keyword = words.next()?;
    words.nth(if keyword == "var" { 1 } else { 0 })
}

/// A piece of a text: a name, or what lies between two.
struct Word<'a> {
    text: &'a str,
    is_name: bool,
}

/// The words of a text. What follows a dot is a component, and part of no name.
fn words(text: &str) -> impl Iterator<Item = Word<'_>> {
    let mut rest = text;
    let mut is_component = false;
    std::iter::from_fn(move || {
        let first = rest.bytes().next()?;
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let is_name = first.is_ascii_alphabetic() || first == b'_';
        let end = match first {
            _ if is_name => rest.find(|c| !is_part(c)),
            b'0'..=b'9' => rest.find(|c| !is_part(c) && c != '.'),
            _ => rest.find(is_part),
        };
        let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
        rest = after;
        let follows_dot = std::mem::replace(&mut is_component, word.ends_with('.') && !first.is_ascii_digit());
        Some(Word { text: word, is_name: is_name && !follows_dot })
    })
}

/// A text of kernel `number`: its bindings by their numbers in the launch, its other own names and parameters with its number.
fn renamed(text: &str, own: &BTreeSet<&str>, bindings: &BTreeMap<&str, usize>, number: usize) -> String {
    let mut out = String::with_capacity(2 * text.len());
    let is_struct = text.starts_with("struct");
    let words: Vec<Word<'_>> = words(text).collect();
    for (at, word) in words.iter().enumerate() {
        let before = |back: usize| at.checked_sub(back).map_or("", |at| words[at].text);
        let is_field = is_struct && words.get(at + 1).is_some_and(|next| next.text.starts_with(':'));
        let _ = match bindings.get(word.text) {
            _ if before(1) == "." && before(2) == "p" => write!(out, "{}_{number}", word.text),
            _ if !word.is_name || is_field || word.text == "p" => write!(out, "{}", word.text),
            Some(slot) => write!(out, "buffer_{slot}"),
            None if own.contains(word.text) => write!(out, "{}_{number}", word.text),
            None => write!(out, "{}", word.text),
        };
    }
    out
}

/// The entry point, which calls those of the kernels.
#[derive(Default)]
struct Entry {
    /// The builtin values that kernels use, with their types.
    builtins: BTreeMap<String, String>,
    calls: Vec<String>,
}

impl Entry {
    /// Adds the entry point of a kernel as a function.
    fn add(&mut self, item: &str, number: usize, rename: impl Fn(&str) -> String, module: &mut String) {
        let Some((arguments, body)) = item.split_once("fn main(").and_then(|(_, rest)| rest.split_once(") {")) else {
            return;
        };
        let begin = if number == 0 { "0u".to_owned() } else { format!("p.end_{number}") };
        let (mut parameters, mut passed) = (String::new(), String::new());
        for argument in arguments.split("@builtin(").skip(1) {
            let Some((builtin, typed)) = argument.split_once(") ") else { continue };
            let typed = typed.trim().trim_end_matches(',');
            let Some((_, ty)) = typed.split_once(": ") else { continue };
            self.builtins.insert(builtin.to_owned(), ty.to_owned());
            let _ = write!(parameters, "{typed}, ");
            let _ = match builtin {
                "workgroup_id" => write!(passed, "vec3<u32>(number - {begin}, 0u, 0u), "),
                "num_workgroups" => write!(passed, "vec3<u32>(end - {begin}, 1u, 1u), "),
                other => write!(passed, "{other}, "),
            };
        }
        let _ = write!(module, "fn main_{number}({parameters}) {{{}", rename(body));
        self.calls.push(format!("main_{number}({passed});"));
    }

    fn text(mut self) -> String {
        for builtin in ["workgroup_id", "num_workgroups"] {
            self.builtins.insert(builtin.to_owned(), "vec3<u32>".to_owned());
        }
        let mut text = format!("@compute @workgroup_size({})\nfn main(\n", crate::WORKGROUP);
        for (builtin, ty) in &self.builtins {
            let _ = writeln!(text, "@builtin({builtin}) {builtin}: {ty},");
        }
        text.push_str(") {\nlet number = group_number(workgroup_id, num_workgroups);\n");
        let last = self.calls.len().saturating_sub(1);
        for (number, call) in self.calls.iter().enumerate() {
            let _ = match number {
                _ if number == last => {
                    write!(text, "{{\nlet end = num_workgroups.x * num_workgroups.y;\n{call}\n}}\n")
                }
                _ => write!(text, "if number < p.end_{0} {{\nlet end = p.end_{0};\n{call}\n}} else ", number + 1),
            };
        }
        text.push_str("}\n");
        text
    }
}

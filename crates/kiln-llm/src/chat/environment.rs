//! The environment of templates: Jinja with the functions and filters of the library transformers.

use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::python;

/// The name of the template in its environment, for errors.
pub(super) const NAME: &str = "template";

/// Maximum depth of nested macro calls and expressions in a template.
const RECURSION: usize = 200;

/// An environment with one template.
///
/// # Errors
/// [`ErrorKind::SyntaxError`] and others if the source is not a template.
pub(super) fn environment(source: &str) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_recursion_limit(RECURSION);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.set_formatter(|out, _, value| match value.as_str() {
        Some(text) => Ok(out.write_str(text)?),
        None => Ok(out.write_str(&python::text(value)?)?),
    });
    environment.add_filter("tojson", |value: &Value, options| python::to_json(value, options));
    environment.add_filter("string", |value: &Value| python::text(value));
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_test("iterable", is_iterable);
    environment.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, format!("the conversation is refused: {}", python::text(message)?)))
    });
    environment.add_template_owned(NAME, without_generation_tags(source))?;
    Ok(environment)
}

/// The length of a value; 0 for an undefined one, as in Python.
fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    let unsized_value = || Error::new(ErrorKind::InvalidOperation, format!("{} has no length", value.kind()));
    value.len().ok_or_else(unsized_value)
}

/// Whether a value is iterable in Python: also texts and undefined values, but not none.
fn is_iterable(value: &Value) -> bool {
    value.as_str().is_some() || value.is_undefined() || !value.is_none() && value.try_iter().is_ok()
}

/// Replaces the tags `{% generation %}` and `{% endgeneration %}`, which mark the model's messages and have no effect
/// on prompts, by a block that is always taken. Keeps whitespace control marks.
fn without_generation_tags(source: &str) -> String {
    let mut to = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start + 2);
        to.push_str(before);
        let inner = tag.trim_start_matches(['-', '+']).trim_ascii_start();
        let replaced = [("generation", "if true"), ("endgeneration", "endif")].into_iter().find_map(|(name, by)| {
            let behind = inner.strip_prefix(name)?;
            behind.trim_ascii_start().trim_start_matches(['-', '+']).starts_with("%}").then_some((behind, by))
        });
        rest = match replaced {
            Some((behind, by)) => {
                to.push_str(&tag[..tag.len() - inner.len()]);
                to.push_str(by);
                behind
            }
            None => tag,
        };
    }
    to + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn render(source: &str) -> String {
        environment(source).unwrap().get_template(NAME).unwrap().render(()).unwrap()
    }

    #[test]
    fn generation_tags_mean_nothing() {
        assert_eq!(
            without_generation_tags("a{%- generation -%} b {% endgeneration %}{% if x %}"),
            "a{%- if true -%} b {% endif %}{% if x %}"
        );
        assert_eq!(
            without_generation_tags("{% generations %}{{ generation }}{% set generation = 1 %}"),
            "{% generations %}{{ generation }}{% set generation = 1 %}"
        );
        assert_eq!(render("a {%- generation %}\n b {%- endgeneration %}"), "a b");
    }

    /// The expected texts are from Python 3.11 and Jinja 3.1.6.
    #[test]
    fn values_are_written_as_python_writes_them() {
        for (expression, expected) in [
            ("[true, none, 1, 1.0, 'it\\'s', \"q\\\"\"]", "[True, None, 1, 1.0, \"it's\", 'q\"']"),
            ("{'b': 1, 'a': [1e20, 0.00001]}", "{'b': 1, 'a': [1e+20, 1e-05]}"),
            ("{'b': 1, 'a': [1e20, 'é\\n']}|tojson", "{\"b\": 1, \"a\": [1e+20, \"é\\n\"]}"),
            (
                "{'b': 1, 'a': [true, none]}|tojson(sort_keys=true, separators=(',', ':'))",
                "{\"a\":[true,null],\"b\":1}",
            ),
            ("'é😀'|tojson(ensure_ascii=true)", "\"\\u00e9\\ud83d\\ude00\""),
            ("{'a': [1, {}], 'b': []}|tojson(indent=2)", "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}"),
            ("missing|length", "0"),
            (
                "[none is iterable, missing is iterable, 'a' is iterable, [] is iterable, 1 is iterable]",
                "[False, True, True, True, False]",
            ),
            ("'abc'|length", "3"),
            ("missing", ""),
            ("1.5|string + 'x'", "1.5x"),
            ("' a '.strip() + 'b,c'.split(',')[1]", "ac"),
        ] {
            assert_eq!(render(&format!("{{{{ {expression} }}}}")), expected, "{expression}");
        }
    }
}

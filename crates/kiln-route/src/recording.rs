//! What a machine measured, kept to judge decisions without it.

use serde::{Deserialize, Serialize};

use crate::profile::{Machine, Profile, ProfileProblem, corrupt};

/// The profile of a machine, and the times of problems that were measured beside it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    /// What decides.
    pub profile: Profile,
    /// What was measured.
    pub problems: Vec<RecordedProblem>,
}

/// The times of one problem, from host to host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedProblem {
    /// What it is called; where several are called the same they are in the order of measuring.
    pub name: String,
    /// Seconds on each place; `None` where a place was not worth waiting for.
    pub seconds: Vec<Option<f64>>,
}

impl Recording {
    /// As JSON, with four digits of every number: as many as differ from run to run.
    pub fn to_json(&self) -> String {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        shorten(&mut value);
        value.to_string()
    }

    /// Reads a recording of any machine.
    ///
    /// # Errors
    /// The errors of [`Profile::from_json`], but for the machine.
    pub fn from_json(text: &str) -> Result<Self, ProfileProblem> {
        #[derive(Deserialize)]
        struct Text {
            profile: serde_json::Value,
            problems: Vec<RecordedProblem>,
        }
        let Text { profile, problems } = serde_json::from_str(text).map_err(|e| corrupt(&e))?;
        let machine = serde_json::from_value::<Machine>(profile["machine"].clone()).map_err(|e| corrupt(&e))?;
        Ok(Self { profile: Profile::from_json(&profile.to_string(), &machine)?, problems })
    }
}

fn shorten(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Array(values) => values.iter_mut().for_each(shorten),
        serde_json::Value::Object(fields) => fields.values_mut().for_each(shorten),
        serde_json::Value::Number(number) if !number.is_u64() => {
            let short = number.as_f64().and_then(|x| format!("{x:.3e}").parse().ok());
            if let Some(short) = short.and_then(serde_json::Number::from_f64) {
                *number = short;
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Backend, PROFILE_VERSION, Place};
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn a_recording_is_read_as_it_was_written() {
        let machine = Machine { name: "some machine".into(), threads: 2, instruction_set: "avx2".into(), cpus: None };
        let profile = Profile::new(machine, vec![Place::cpu("avx2 x1", Backend::Simd, 8, 1)]).unwrap();
        let problems = vec![RecordedProblem { name: "add [3]".into(), seconds: vec![Some(1.234_567e-7), None] }];
        let recording = Recording { profile, problems };
        let read = Recording::from_json(&recording.to_json()).unwrap();
        assert_eq!(read.problems[0].seconds, [Some(1.235e-7), None]);
        assert_eq!(Recording::from_json(&read.to_json()).unwrap(), read);
        let version = format!("\"version\":{PROFILE_VERSION}");
        for bad in ["", "{}", "[]", &recording.to_json().replace(&version, "\"version\":4")] {
            assert!(Recording::from_json(bad).is_err(), "{bad}");
        }
    }
}

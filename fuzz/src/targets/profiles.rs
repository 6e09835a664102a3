//! Profiles: JSON, and the decisions that are made by what it says.

use std::sync::OnceLock;

use kiln::op::{Elementwise, Matmul, Op, Softmax};
use kiln::{Machine, Problem, Profile, Recording, Residency, Router, Shape, TensorType};

use super::message;

/// Profiles that were measured on three machines.
const RECORDED: [&str; 3] = [
    include_str!("../../../crates/kiln/tests/recorded/epyc-2.json"),
    include_str!("../../../crates/kiln/tests/recorded/xeon-16-h100.json"),
    include_str!("../../../crates/kiln/tests/recorded/laptop-by-hand.json"),
];

/// The profiles, all of one machine: one of another is refused before anything else of it is looked at.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let profiles = RECORDED.map(|text| Recording::from_json(text).expect("a test reads it, too").profile);
    profiles.map(|profile| as_of(profile, machine()).into_bytes()).into()
}

fn machine() -> &'static Machine {
    static MACHINE: OnceLock<Machine> = OnceLock::new();
    MACHINE.get_or_init(|| {
        let recording = Recording::from_json(RECORDED[0]).expect("a test reads it, too");
        recording.profile.machine().clone()
    })
}

/// A profile as JSON that says it is of this machine.
fn as_of(profile: Profile, machine: &Machine) -> String {
    let mut json: serde_json::Value = serde_json::from_str(&profile.to_json()).expect("it was just written");
    let own = Profile::new(machine.clone(), profile.places().to_vec()).expect("places of a profile are sound");
    let own: serde_json::Value = serde_json::from_str(&own.to_json()).expect("it was just written");
    json["machine"] = own["machine"].clone();
    json.to_string()
}

/// Operations whose places are decided.
fn problems() -> &'static [Problem] {
    static PROBLEMS: OnceLock<Vec<Problem>> = OnceLock::new();
    PROBLEMS.get_or_init(|| {
        let ty = |dims: &[usize]| TensorType::f32(Shape::new(dims).expect("small extents"));
        let of = |op: Op, inputs: &[TensorType]| Problem::new(&op, inputs).expect("the operands fit");
        vec![
            of(Elementwise::add().into(), &[ty(&[0]), ty(&[0])]),
            of(Softmax.into(), &[ty(&[300, 70])]),
            of(Matmul::default().into(), &[ty(&[1, 512]), ty(&[512, 512])]),
            of(Matmul::default().into(), &[ty(&[1 << 20, 1 << 20]), ty(&[1 << 20, 1 << 20])]),
        ]
    })
}

/// Reads a profile, writes it again, and decides by it.
pub(crate) fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let profile = match Profile::from_json(text, machine()) {
        Ok(profile) => profile,
        Err(error) => return message(error),
    };
    let again = Profile::from_json(&profile.to_json(), machine()).unwrap_or_else(|error| panic!("{error:.200}"));
    assert!(again == profile, "a profile is read as it was written");
    let router = Router::new(profile).with_kept_history();
    for problem in problems() {
        let decision = router.decide(problem, &Residency::host());
        assert!(decision.index() < router.places().len());
        assert!(decision.seconds() > 0.0, "{}", decision.seconds());
        message(decision.why());
        router.observe(problem, &Residency::host(), decision.index(), 1e-3);
    }
}

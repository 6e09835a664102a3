//! Properties of decisions and profiles over random problems.
#![cfg(not(target_arch = "wasm32"))]

mod common;

use common::*;
use kiln_ir::op::Matmul;
use kiln_route::{Problem, Profile, Residency, Router};
use proptest::prelude::*;

proptest! {
    #[test]
    fn the_choice_is_never_worse_than_a_tie(
        m in 0usize..3000, k in 0usize..3000, n in 0usize..3000,
        moved in 0u8..4, keep in any::<bool>(), cold in any::<bool>(),
    ) {
        let router = with_gpu();
        let problem = Problem::new(&Matmul::default().into(), &[ty(&[m, k]), ty(&[k, n])]).unwrap();
        let mut residency = Residency::host();
        for operand in 0..2 {
            if moved >> operand & 1 == 1 {
                residency = residency.moved(operand, GPU);
            }
        }
        if keep {
            residency = residency.keep_result();
        }
        if cold {
            residency = residency.cold(4);
        }
        let decision = router.decide(&problem, &residency);
        let least = decision.predictions().map(|p| p.seconds).fold(f64::INFINITY, f64::min);
        prop_assert!(decision.seconds().is_finite() && decision.seconds() >= 0.0);
        // 3 % is a tie; 10 % does not decide for more threads, nor for a lesser instruction set.
        prop_assert!(decision.seconds() <= least * 1.10 * 1.10 * 1.03);
        prop_assert_eq!(router.decide(&problem, &residency).index(), decision.index(), "a pure function");
    }

    #[test]
    fn predicted_times_grow_with_work_where_measured_times_do(
        steps in prop::collection::vec((1.1f64..50.0, 1.0f64..50.0), 1..8), a in 1usize..10_000_000, b in 1usize..10_000_000,
    ) {
        let (mut work, mut time) = (12.0, 1e-7);
        let points: Vec<(f64, [f64; 4])> = steps
            .iter()
            .map(|(w, t)| {
                work *= w;
                time *= t;
                (work, [time; 4])
            })
            .collect();
        let classes = vec![calibrated("add", "", &points)];
        let router = Router::new(Profile::new(machine(), cpu_places()).unwrap().with_classes(classes).unwrap());
        let seconds = |n| router.decide(&addition(n), &Residency::host()).seconds();
        let (small, large) = (a.min(b), a.max(b));
        prop_assert!(seconds(small) <= seconds(large) * (1.0 + 1e-12));
    }

    #[test]
    fn damaged_text_never_panics(position in 0usize..10_000, byte in any::<u8>()) {
        let mut bytes = with_gpu().profile().to_json().into_bytes();
        let position = position % bytes.len();
        bytes[position] = byte;
        if let Ok(text) = std::str::from_utf8(&bytes)
            && let Ok(profile) = Profile::from_json(text, &machine())
        {
            let places = profile.places().len();
            prop_assert!(Router::new(profile).decide(&square(100), &Residency::host()).index() < places);
        }
    }

    #[test]
    fn absurd_numbers_still_give_a_place(
        seconds in prop::collection::vec(prop::sample::select(vec![1e-9, 1.0, 1e22, (1u128 << 99) as f64]), 8),
        work in prop::sample::select(vec![(1.0, 2.0), (1.0, 1e22), (1e21, 1e22)]),
        threads in prop::collection::vec(prop::sample::select(vec![0, 1, 2, usize::MAX]), 4), n in 0usize..10_000,
    ) {
        let mut places = cpu_places();
        places.iter_mut().zip(threads).for_each(|(place, threads)| place.threads = threads);
        let points = [(work.0, [seconds[0], seconds[1], seconds[2], seconds[3]]),
            (work.1, [seconds[4], seconds[5], seconds[6], seconds[7]])];
        let profile = Profile::new(machine(), places).unwrap().with_classes(vec![calibrated("add", "", &points)]).unwrap();
        let read = Profile::from_json(&profile.to_json(), &machine()).unwrap();
        prop_assert_eq!(&read, &profile);
        let router = Router::new(read);
        let decision = router.decide(&addition(n), &Residency::host());
        prop_assert!(decision.index() < 4 && (0.0..f64::INFINITY).contains(&decision.seconds()));
        let barred = Residency::host().barred(0).barred(1).barred(3);
        prop_assert_eq!(router.decide(&addition(n), &barred).index(), 2);
        prop_assert!(!decision.why().to_string().is_empty());
    }
}

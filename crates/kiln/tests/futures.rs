//! The operations as futures, as the engine of a page has them.
#![cfg(all(target_arch = "wasm32", target_os = "unknown"))]

use kiln::{AsyncOperations, Engine, Error, QuantFormat, Simd};
use wasm_bindgen_test::wasm_bindgen_test as test;

#[test]
async fn futures_give_what_the_operations_do() {
    let engine = Engine::new_async().await.unwrap();
    // The blocking methods of the same names.
    macro_rules! same {
        ($($name:ident($($argument:expr),*);)*) => {$(
            assert_eq!(
                AsyncOperations::$name(&engine, $($argument),*).await.unwrap(),
                kiln::Operations::$name(&Simd::new().unwrap(), $($argument),*).unwrap(),
                stringify!($name)
            );
        )*};
    }
    let x: Vec<f32> = (0..256).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
    let w = kiln::Operations::quantize(&Simd::new().unwrap(), &x, 64, QuantFormat::Q8_0).unwrap();
    same! {
        add(&x, &x);
        clip(&x, -0.5, 0.25);
        sum(&x);
        argmax(&x);
        max_axis(&x, &[16, 16], 0);
        argmin_axis(&x, &[16, 16], 1);
        dot(&x, &x);
        matmul(&x[..6], &x[6..12], 2, 3, 2);
        matvec(&x[..6], &x[6..9], 2, 3);
        softmax(&x, 32);
        layer_norm(&x, &x[..8], &x[8..16], 1e-5);
        gather(&x, 16, &[3, 0, 3]);
        top_k(&x, 32, 3);
        sort(&x, &[16, 16], 0, true);
        concat(&[(&x[..6], &[2, 3]), (&x[6..9], &[1, 3])], 0);
        quantize(&x, 64, QuantFormat::Q8_0);
        quant_matvec(&w, &x[..64], 4, 64, QuantFormat::Q8_0);
    }
}

#[test]
async fn futures_refuse_what_the_operations_do() {
    let engine = Engine::new_async().await.unwrap();
    assert!(matches!(engine.add(&[1.0], &[1.0, 2.0]).await, Err(Error::Shape { .. })));
    assert!(matches!(engine.matmul(&[1.0], &[1.0], 2, 2, 2).await, Err(Error::Length { .. })));
    assert!(matches!(engine.gather(&[1.0], 1, &[1]).await, Err(Error::Index { .. })));
    assert!(matches!(engine.softmax(&[1.0], 2).await, Err(Error::Shape { .. })));
}

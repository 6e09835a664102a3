//! Random programs: rows of the table on what earlier ones gave, in loops and branches, with memory in between.

use kiln_ptx::{Builder, Global, Pointer, Shared, Value, instruction_table};

/// A value of any type.
#[derive(Clone, Copy)]
enum Any<'k> {
    Bool(Value<'k, bool>),
    U32(Value<'k, u32>),
    S32(Value<'k, i32>),
    U64(Value<'k, u64>),
    F32(Value<'k, f32>),
    F64(Value<'k, f64>),
}

/// A scalar type among the others.
trait Pick: Sized {
    fn of<'k>(any: Any<'k>) -> Option<Value<'k, Self>>;
    fn any<'k>(value: Value<'k, Self>) -> Any<'k>;
}

macro_rules! picks {
    ($($ty:ty, $variant:ident;)*) => {
        $(impl Pick for $ty {
            fn of<'k>(any: Any<'k>) -> Option<Value<'k, Self>> {
                if let Any::$variant(value) = any { Some(value) } else { None }
            }
            fn any<'k>(value: Value<'k, Self>) -> Any<'k> {
                Any::$variant(value)
            }
        })*
    };
}
picks! { bool, Bool; u32, U32; i32, S32; u64, U64; f32, F32; f64, F64; }

/// One of the values of a type, chosen by a number. There is always one.
fn pick<'k, T: Pick>(values: &[Any<'k>], choice: u16) -> Value<'k, T> {
    let fitting: Vec<_> = values.iter().filter_map(|&any| T::of(any)).collect();
    fitting[choice as usize % fitting.len()]
}

type Step = for<'k> fn(&'k Builder, &mut Vec<Any<'k>>, &[u16]);

macro_rules! steps {
    ({ $($(#[doc = $doc:literal])* $family:ident $method:ident $operands:tt -> $result:tt
        { $($version:literal $target:ident: $($ty:ident $name:literal),*);* })* } $special:tt) => {
        const STEPS: &[Step] = &[$($($(steps!(@step $method $operands $result $ty)),*),*),*];
    };
    // A barrier would have to be met by all threads, and a program does not know where they are.
    (@step $method:ident $operands:tt () $ty:ident) => { |_, _, _| {} };
    (@step $method:ident ($($x:ident: $operand:ident),*) $result:ident $ty:ident) => {
        |k, values, choices| {
            type T = $ty;
            let mut choices = choices.iter();
            $(let $x = pick::<$operand>(values, *choices.next().unwrap());)*
            let value = k.$method($($x),*);
            values.push(<$result as Pick>::any(value));
        }
    };
}
instruction_table!(steps);

/// Writes a program of these steps.
pub(crate) fn write(k: &Builder, steps: &[[u16; 5]]) {
    let input: Pointer<'_, Global, f32> = k.buffer("x");
    let scratch: Pointer<'_, Shared, f32> = k.shared(256);
    let thread = k.tid_x();
    let x = k.ld(input.index(thread));
    let values = vec![
        Any::Bool(k.lt(x, 1.5)),
        Any::U32(thread),
        Any::S32(k.bits_s32(x)),
        Any::U64(k.cvt_u64(thread)),
        Any::F32(x),
        Any::F64(k.cvt_f64(x)),
    ];
    let sum = k.variable(0.0f32);
    block(k, steps, values, &|value| sum.set(k.add(sum, value)), scratch);
    k.st(input.index(thread), sum.get());
}

/// The steps of one block; what it computes is not seen outside of it.
fn block<'k>(
    k: &'k Builder,
    steps: &[[u16; 5]],
    mut values: Vec<Any<'k>>,
    keep: &dyn Fn(Value<'k, f32>),
    scratch: Pointer<'k, Shared, f32>,
) {
    for (at, step) in steps.iter().enumerate() {
        let rest = &steps[at + 1..];
        let (inner, after) = rest.split_at(rest.len() / 2);
        match step[0] % 32 {
            0 => {
                let p = pick::<bool>(&values, step[1]);
                if step[2] % 2 == 0 {
                    k.if_(p, || block(k, inner, values.clone(), keep, scratch));
                } else {
                    let otherwise = &after[..after.len() / 2];
                    k.if_else(
                        p,
                        || block(k, inner, values.clone(), keep, scratch),
                        || block(k, otherwise, values.clone(), keep, scratch),
                    );
                }
                return block(k, after, values, keep, scratch);
            }
            1 => {
                k.for_(0, u32::from(step[1] % 9), 1 + u32::from(step[2] % 3), |i| {
                    let mut values = values.clone();
                    values.push(Any::U32(i));
                    block(k, inner, values, keep, scratch);
                });
                return block(k, after, values, keep, scratch);
            }
            2 => keep(pick(&values, step[1])),
            3 => {
                let place = scratch.index(pick::<u32>(&values, step[1]) & 63).offset((step[2] % 190) as i32);
                k.st_if(pick(&values, step[3]), place, pick::<f32>(&values, step[4]));
                values.push(Any::F32(k.ld_if(pick(&values, step[3]), place, 0.25)));
            }
            4 => {
                let place = scratch.index((pick::<u32>(&values, step[1]) & 31) << 2);
                k.st_v(place, [1, 2, 3, 4].map(|i: usize| pick::<f32>(&values, step[i])));
                values.extend(k.ld_v::<_, _, 2>(place.offset(2)).map(Any::F32));
            }
            5 => {
                let [lower, upper] = k.split(pick::<u64>(&values, step[1]));
                values.push(Any::U64(k.join(upper, lower)));
            }
            6 => values.push(Any::F32(pick::<f32>(&values, step[1]) * f32::from(step[2]) - 0.5)),
            7 => values.push(Any::S32(pick::<i32>(&values, step[1]) - i32::from(step[2] as i16))),
            _ => STEPS[step[0] as usize / 32 % STEPS.len()](k, &mut values, &step[1..]),
        }
    }
    keep(pick(&values, 0));
}

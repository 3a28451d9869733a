//! Loops compiled for the widest registers of the processor, which are found at run time.
//!
//! A loop over lanes becomes instructions for 128, 256 or 512 bits. Each operation is the one that
//! is written, in the same order, so results are the same on every processor, bit by bit.
//!
//! Registers of 512 bits are used where there is VBMI2: older processors run slower while they use
//! them.

use multiversion::multiversion;

/// A loop. `run` must be `#[inline(always)]`, and so must all functions that it calls: what is not
/// inlined is compiled for small registers. Closures of `array::map` and `Iterator::zip` may be
/// calls.
pub(crate) trait Lanes {
    type Output;

    fn run(self) -> Self::Output;
}

/// Runs the version of a loop for the widest registers.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512cd+avx512dq+avx512vl+avx512vbmi2+avx2+bmi1+bmi2+fma+lzcnt+popcnt",
    "x86_64+avx2+bmi1+bmi2+fma+lzcnt+popcnt"
))]
pub(crate) fn in_widest<L: Lanes>(lanes: L) -> L::Output {
    lanes.run()
}

/// Repeats a block for the numbers 0 to 7, each a constant.
///
/// Compilers turn a loop over rows around a loop over lanes on its side, if the rows lie at equal
/// distances: a register then takes one number of each row, and each is loaded and stored by
/// itself.
macro_rules! unrolled {
    ($number:ident => $body:block) => {
        unrolled!(@ $number $body 0 1 2 3 4 5 6 7)
    };
    (@ $number:ident $body:block $($value:literal)*) => {
        $({
            const $number: usize = $value;
            $body
        })*
    };
}
pub(crate) use unrolled;

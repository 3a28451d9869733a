//! Loops compiled for the widest registers of the processor, chosen at run time.
//!
//! A loop over lanes becomes instructions for 128, 256 or 512 bits. Each operation is the one that
//! is written, in the same order, so results are the same on every processor, bit by bit.
//!
//! Registers of 512 bits are used if the processor has VBMI2. Older processors run at a lower speed
//! when they use registers of 512 bits.

use multiversion::multiversion;

/// A loop. `run` and all functions that it calls must be `#[inline(always)]`: functions that are
/// not inlined are compiled for small registers. Closures of `array::map` and `Iterator::zip` may
/// not be inlined.
pub trait Lanes {
    /// The result of the loop.
    type Output;

    /// Runs the loop.
    fn run(self) -> Self::Output;
}

/// Runs the version of a loop for the widest registers.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512cd+avx512dq+avx512vl+avx512vbmi2+avx2+bmi1+bmi2+fma+lzcnt+popcnt",
    "x86_64+avx2+bmi1+bmi2+fma+lzcnt+popcnt"
))]
pub fn in_widest<L: Lanes>(lanes: L) -> L::Output {
    lanes.run()
}

/// Repeats a block for the numbers 0 to 7, each a constant.
///
/// If rows lie at equal distances, compilers may exchange a loop over rows with the loop over lanes
/// inside it. A register then takes one number of each row, and each number is loaded and stored
/// separately.
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

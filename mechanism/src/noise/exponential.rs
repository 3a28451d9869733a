//! Exponentials of rational numbers, enclosed by integers to any precision.

use num_bigint::BigUint;

/// Returns integers that enclose `2^precision·exp(−numerator/denominator)`, with a distance far
/// below 2⁶⁴.
///
/// With a = numerator/denominator, exp(a) = Σaⁿ/n! has positive terms only, so rounding every term
/// down and up encloses it. After n ≥ 2a terms the rest is at most the last term. The relative
/// width is below (terms+2)²·2^−working. Where a is at least the precision, 0 and 1 enclose the
/// result, and no terms are computed.
pub(super) fn bounds(numerator: &BigUint, denominator: &BigUint, precision: u64) -> (BigUint, BigUint) {
    if *numerator >= denominator * precision {
        return (BigUint::ZERO, BigUint::from(1u32));
    }
    let working = precision + 64;
    let one = BigUint::from(1u32) << working;
    let (mut low_term, mut high_term) = (one.clone(), one.clone());
    let (mut low, mut high) = (one.clone(), one);
    let twice = numerator * 2u32;
    let (mut n, mut divisor) = (0u64, BigUint::ZERO);
    while divisor < twice || high_term > BigUint::from(1u32) {
        n += 1;
        divisor = denominator * n;
        low_term = low_term * numerator / &divisor;
        high_term = (high_term * numerator + &divisor - 1u32) / &divisor;
        low += &low_term;
        high += &high_term;
    }
    high += high_term;
    let scaled = BigUint::from(1u32) << (precision + working);
    (&scaled / high, scaled / low + 1u32)
}

//! Tests that fast rounds give the results of the definition.

use super::*;
use chacha20::ChaCha20Rng;
use rand::{Rng, SeedableRng};

/// Random words in which a bin, a position, or both are sometimes at the end of their range.
fn words<const WORDS: usize>(round: usize, rng: &mut ChaCha20Rng) -> [u64; WORDS] {
    let mut words: [u64; WORDS] = std::array::from_fn(|_| rng.next_u64());
    match round % 61 {
        1 => words[0] |= !0 << 52,
        2 => words[0] &= !0 >> 12,
        3 => words[1] |= !0 << (round % 64),
        4 => words[1] >>= round % 64,
        5 => words = [words[0] & 1; WORDS],
        6 => words[1] &= u64::MAX >> 32 | !0 << (32 + round % 32),
        _ => {}
    }
    words
}

/// If a plain round ends, the full round gives the same result and needs no more bits. Plain
/// rounds nearly always end.
fn check<const WORDS: usize>(significand: u32, exponent: u32) {
    let scale = NoiseScale::new(significand, exponent).unwrap();
    let gaussian = DiscreteGaussian::new(scale);
    let mut rng = ChaCha20Rng::seed_from_u64(u64::from(significand) ^ u64::from(exponent));
    let (rounds, mut open) = (100_000, 0);
    for round in 0..rounds {
        let words = words::<WORDS>(round, &mut rng);
        let before = rng.get_word_pos();
        match gaussian.plain_round(words) {
            (x, true) => {
                assert_eq!(gaussian.round(words, &mut rng), Some(x), "{words:x?}");
                assert_eq!(rng.get_word_pos(), before, "no more bits");
            }
            (_, false) => open += 1,
        }
    }
    assert!(open < rounds / 10, "{open}");
}

/// As `check`, for packed rounds. Both widths of integers get equal draws.
fn check_packed<const WORDS: usize>(significand: u32, exponent: u32) {
    let gaussian = DiscreteGaussian::new(NoiseScale::new(significand, exponent).unwrap());
    assert!(gaussian.is_packed);
    let mut rng = ChaCha20Rng::seed_from_u64(u64::from(significand) ^ u64::from(exponent));
    let (blocks, mut opened) = (1000, 0);
    for block in 0..blocks {
        let words: [[u64; 2]; ROUNDS] = std::array::from_fn(|position| words(block * 7 + position, &mut rng));
        let mut bytes = [[0; 8]; WORDS];
        let (first, shorter) = bytes.split_at_mut(ROUNDS);
        let (shorter, _) = shorter.as_flattened_mut().as_chunks_mut();
        for (position, [word, rest]) in words.into_iter().enumerate() {
            first[position] = word.to_le_bytes();
            shorter[position] = ((rest >> 32) as u32).to_le_bytes();
            if let Some(third) = shorter.get_mut(ROUNDS + position) {
                *third = (rest as u32).to_le_bytes();
            }
        }
        let mut noise = [0i64; ROUNDS];
        let (bins, leading, low_bits) = (gaussian.bins, gaussian.leading, gaussian.low_bits);
        let open = in_widest(PackedRounds { bins, leading, low_bits, bytes: &bytes, noise: &mut noise });
        opened += open.count_ones() as usize;
        let before = rng.get_word_pos();
        for position in (0..ROUNDS).filter(|position| open >> position & 1 == 0) {
            assert_eq!(gaussian.round(words[position], &mut rng), Some(noise[position].into()), "{words:x?}");
        }
        assert_eq!(rng.get_word_pos(), before, "no more bits");
    }
    assert!(opened < blocks * ROUNDS / 8, "{opened}");
    let [mut narrow, mut wide] = [(); 2].map(|()| ChaCha20Rng::seed_from_u64(1));
    let (mut small, mut large) = ([0i64; 200], [0i128; 200]);
    gaussian.fill_narrow(&mut narrow, &mut small);
    gaussian.fill(&mut wide, &mut large);
    assert_eq!(small.map(i128::from), large);
}

#[test]
fn packed_rounds_equal_plain_rounds() {
    check_packed::<{ PACKED_WORDS[0] }>(1 << 19, 0);
    check_packed::<{ PACKED_WORDS[0] }>((1 << 20) - 1, 16);
    check_packed::<{ PACKED_WORDS[0] }>(600_001, 19);
    check_packed::<{ PACKED_WORDS[1] }>(600_001, 20);
    check_packed::<{ PACKED_WORDS[1] }>(777_777, 32);
}

#[test]
fn plain_rounds_equal_the_definition() {
    check::<2>(1 << 20, 0);
    check::<2>(3_000_000_019, 20);
    check::<2>(u32::MAX, 25);
    check::<3>(u32::MAX, 27);
    check::<3>(1 << 31, 30);
    check::<3>(0xdead_beef, 42);
    check::<3>(u32::MAX, 64);
    check::<3>(1, 64);
}

/// Bits of U become bits of the draw. Each of these must be balanced in even and in odd bins.
/// 200,000 draws, 38 counts within 6 deviations: false alarm below 1e-7.
#[test]
fn last_bits_are_balanced_whatever_the_bin() {
    let (bits, mut rng) = (19, ChaCha20Rng::seed_from_u64(9));
    let gaussian = DiscreteGaussian::new(NoiseScale::new(524_289, bits).unwrap());
    let mut noise = vec![0i64; 200_000];
    gaussian.fill_narrow(&mut rng, &mut noise);
    for parity in [0, 1] {
        let width = 524_289 << bits;
        let draws = noise.iter().map(|draw| draw.unsigned_abs()).filter(|x| x / width % 2 == parity);
        let number = draws.clone().count() as f64;
        for bit in 0..bits {
            let ones = draws.clone().filter(|x| x >> bit & 1 == 1).count() as f64;
            assert!((2.0 * ones - number).abs() < 6.0 * number.sqrt(), "bit {bit}: {ones} of {number}");
        }
    }
}

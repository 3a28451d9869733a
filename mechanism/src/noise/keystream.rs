//! The keystream of ChaCha20, many blocks at a time.
//!
//! The cipher is the `chacha20` crate, which is audited. Its code for registers of 512 bits is
//! compiled only under a flag that programs do not inherit from their dependencies. So this file
//! has its own code for such registers, and uses it if the processor at run time has them. Both
//! give the same bytes.
//!
//! Each register holds one word of sixteen blocks. So a quarter round takes the same registers in
//! every round, and no words move until the blocks are written.

use chacha20::ChaCha20Legacy;
use chacha20::cipher::{KeyIvInit, StreamCipher, StreamCipherSeek};
use multiversion::{multiversion, target::match_target};
use zeroize::Zeroizing;

/// Bytes of a block.
const BLOCK: usize = 64;

/// Number of blocks in the registers, of which they hold all words.
const GROUP: usize = 16;

/// Bytes generated at a time.
pub(super) const BATCH: usize = 2 * GROUP * BLOCK;

/// The keystream of a key and a nonce of 64 bits, from its first block on. Wiped when dropped.
pub(super) struct Keystream {
    key: Zeroizing<[u8; 32]>,
    nonce: u64,
    /// The first block of the next batch.
    block: u64,
}

impl Keystream {
    pub(super) fn new(key: &[u8; 32], nonce: u64) -> Self {
        Self { key: Zeroizing::new(*key), nonce, block: 0 }
    }

    /// Writes the next blocks.
    pub(super) fn write(&mut self, batch: &mut [u8; BATCH]) {
        write_blocks(&self.key, self.nonce, self.block, batch);
        self.block = self.block.wrapping_add((BATCH / BLOCK) as u64);
    }
}

#[multiversion(targets("x86_64+avx512f"))]
fn write_blocks(key: &[u8; 32], nonce: u64, block: u64, batch: &mut [u8; BATCH]) {
    match_target! {
        "x86_64+avx512f" => wide::write_blocks(key, nonce, block, batch),
        _ => write_blocks_by_the_crate(key, nonce, block, batch),
    }
}

fn write_blocks_by_the_crate(key: &[u8; 32], nonce: u64, block: u64, batch: &mut [u8; BATCH]) {
    let mut cipher = ChaCha20Legacy::new(key.into(), &nonce.to_le_bytes().into());
    cipher.seek(u128::from(block) * 64);
    cipher.write_keystream(batch);
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use super::{BATCH, BLOCK, GROUP};
    use bytemuck::cast;
    use std::arch::x86_64::{
        __m512i, _mm512_add_epi32, _mm512_rol_epi32, _mm512_set1_epi32, _mm512_shuffle_i32x4,
        _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
        _mm512_xor_si512,
    };

    /// One word of every block of a group.
    type Word = __m512i;

    const CONSTANTS: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

    macro_rules! half_quarter_round {
        ($words:ident: $sum:literal $added:literal $rotated:literal $bits:literal) => {
            $words[$sum] = _mm512_add_epi32($words[$sum], $words[$added]);
            $words[$rotated] = _mm512_rol_epi32::<$bits>(_mm512_xor_si512($words[$rotated], $words[$sum]));
        };
    }

    /// Makes quarter rounds side by side (RFC 8439, 2.1). As a function it would be a call, and
    /// words would go through memory.
    macro_rules! quarter_rounds {
        ($words:ident: $([$a:literal $b:literal $c:literal $d:literal])*) => {
            $(half_quarter_round!($words: $a $b $d 16);)*
            $(half_quarter_round!($words: $c $d $b 12);)*
            $(half_quarter_round!($words: $a $b $d 8);)*
            $(half_quarter_round!($words: $c $d $b 7);)*
        };
    }

    #[target_feature(enable = "avx512f")]
    pub(super) fn write_blocks(key: &[u8; 32], nonce: u64, block: u64, batch: &mut [u8; BATCH]) {
        let (groups, _) = batch.as_chunks_mut::<{ GROUP * BLOCK }>();
        for (group, bytes) in (0..).zip(groups) {
            write_group(key, nonce, block.wrapping_add(group * GROUP as u64), bytes);
        }
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    fn write_group(key: &[u8; 32], nonce: u64, first: u64, bytes: &mut [u8; GROUP * BLOCK]) {
        let mut start = [_mm512_set1_epi32(0); 16];
        for (word, constant) in start.iter_mut().zip(CONSTANTS) {
            *word = _mm512_set1_epi32(constant.cast_signed());
        }
        for (word, bytes) in start[4..12].iter_mut().zip(key.as_chunks().0) {
            *word = _mm512_set1_epi32(i32::from_le_bytes(*bytes));
        }
        let (mut lows, mut highs) = ([0u32; GROUP], [0u32; GROUP]);
        for ((low, high), position) in lows.iter_mut().zip(&mut highs).zip(0..) {
            let counter = first.wrapping_add(position);
            (*low, *high) = (counter as u32, (counter >> 32) as u32);
        }
        (start[12], start[13]) = (cast(lows), cast(highs));
        start[14] = _mm512_set1_epi32(nonce as i32);
        start[15] = _mm512_set1_epi32((nonce >> 32) as i32);
        let mut words = start;
        for _ in 0..10 {
            quarter_rounds!(words: [0 4 8 12] [1 5 9 13] [2 6 10 14] [3 7 11 15]);
            quarter_rounds!(words: [0 5 10 15] [1 6 11 12] [2 7 8 13] [3 4 9 14]);
        }
        for (word, start) in words.iter_mut().zip(start) {
            *word = _mm512_add_epi32(*word, start);
        }
        write_transposed(&words, bytes);
    }

    /// Writes block after block.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn write_transposed(words: &[Word; 16], bytes: &mut [u8; GROUP * BLOCK]) {
        // `quarters[4i + j]` holds words from 4i to 4i + 3, of the blocks j, 4 + j, 8 + j, 12 + j.
        let mut quarters = *words;
        for quarter in quarters.as_chunks_mut::<4>().0 {
            let [a, b, c, d] = *quarter;
            let [low, high] = [_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b)];
            let [lower, higher] = [_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d)];
            *quarter = [
                _mm512_unpacklo_epi64(low, lower),
                _mm512_unpackhi_epi64(low, lower),
                _mm512_unpacklo_epi64(high, higher),
                _mm512_unpackhi_epi64(high, higher),
            ];
        }
        let (blocks, _) = bytes.as_chunks_mut::<BLOCK>();
        for j in 0..4 {
            let [a, b, c, d] = [quarters[j], quarters[4 + j], quarters[8 + j], quarters[12 + j]];
            let even = [_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0x88>(c, d)];
            let odd = [_mm512_shuffle_i32x4::<0xdd>(a, b), _mm512_shuffle_i32x4::<0xdd>(c, d)];
            blocks[j] = cast(_mm512_shuffle_i32x4::<0x88>(even[0], even[1]));
            blocks[4 + j] = cast(_mm512_shuffle_i32x4::<0x88>(odd[0], odd[1]));
            blocks[8 + j] = cast(_mm512_shuffle_i32x4::<0xdd>(even[0], even[1]));
            blocks[12 + j] = cast(_mm512_shuffle_i32x4::<0xdd>(odd[0], odd[1]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(key: &[u8; 32], nonce: u64, block: u64) -> [u8; BATCH] {
        let mut batch = [1; BATCH];
        write_blocks(key, nonce, block, &mut batch);
        batch
    }

    /// RFC 8439, 2.3.2. Its nonce of 96 bits begins in the upper half of this counter.
    #[test]
    fn first_block_is_that_of_the_standard() {
        let key = std::array::from_fn(|byte| byte as u8);
        let expected = "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e\
            d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e";
        let batch = blocks(&key, 0x4a00_0000, 0x0900_0000_0000_0001);
        let found: String = batch[..64].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn every_processor_gives_the_bytes_of_the_crate() {
        let mut expected = [0; BATCH];
        for case in 0..1000u64 {
            let key = std::array::from_fn(|byte| (case * 31 + byte as u64 * 17) as u8);
            let nonce = case.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            for block in [0, (BATCH / BLOCK) as u64 * case, (1 << 32) - 1 - case % 20, nonce >> 7] {
                write_blocks_by_the_crate(&key, nonce, block, &mut expected);
                assert_eq!(blocks(&key, nonce, block), expected, "block {block} of case {case}");
            }
        }
    }
}

//! Slurm's `bitstr_t`: word 0 is a magic number, word 1 the number of bits, then 64-bit words,
//! lowest bit first. The same in every known release.

use std::ffi::c_void;
use std::marker::PhantomData;

use crate::mem;

const MAGIC: u64 = 0x4243_4445;

/// A bitmap owned by Slurm, borrowed for the length of one call.
#[derive(Clone, Copy)]
pub struct Bitmap<'a> {
    words: *mut u64,
    life: PhantomData<&'a mut u64>,
}

impl<'a> Bitmap<'a> {
    /// Takes a `bitstr_t *`. `None` for null or when the magic is not there.
    ///
    /// # Safety
    /// `pointer` is null or points to a live `bitstr_t` that outlives `'a`.
    pub unsafe fn new(pointer: *mut c_void) -> Option<Bitmap<'a>> {
        let words = pointer.cast::<u64>();
        if words.is_null() {
            return None;
        }
        // SAFETY: the caller vouches for a live bitmap, whose first word is readable.
        let magic = unsafe { words.read() };
        (magic == MAGIC).then_some(Bitmap {
            words,
            life: PhantomData,
        })
    }

    /// Slurm's pointer, to hand on to Slurm's functions.
    pub fn raw(self) -> *mut c_void {
        self.words.cast()
    }

    /// Number of bits.
    pub fn len(self) -> usize {
        // SAFETY: word 1 of a live bitmap.
        unsafe { self.words.add(1).read() as usize }
    }

    /// Whether there is no bit at all.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    fn word(self, index: usize) -> *mut u64 {
        // SAFETY: callers below pass an index within the words that `len` bits take.
        unsafe { self.words.add(2 + index) }
    }

    /// Bits `64*index..`, or 0 past the end; bits past `len` are cleared.
    pub fn chunk(self, index: usize) -> u64 {
        let len = self.len();
        if index * 64 >= len {
            return 0;
        }
        let rest = len - index * 64;
        // SAFETY: index * 64 < len, so the word exists.
        let word = unsafe { self.word(index).read() };
        if rest < 64 {
            word & ((1 << rest) - 1)
        } else {
            word
        }
    }

    /// Whether `bit` is set; false past the end.
    pub fn test(self, bit: usize) -> bool {
        self.chunk(bit / 64) >> (bit % 64) & 1 == 1
    }

    /// Sets or clears `bit`; ignored past the end.
    pub fn set_bit(self, bit: usize, value: bool) {
        if bit < self.len() {
            let word = self.word(bit / 64);
            // SAFETY: bit < len, so the word exists; Slurm's locks make this the only writer.
            unsafe {
                if value {
                    *word |= 1 << (bit % 64);
                } else {
                    *word &= !(1 << (bit % 64));
                }
            }
        }
    }

    /// Sets or clears those of the first 64 bits that are set in `bits`; ignored past the end.
    pub fn set_low_bits(self, bits: u64, value: bool) {
        let bits = match self.len() {
            len @ 0..64 => bits & ((1 << len) - 1),
            _ => bits,
        };
        if bits != 0 {
            let word = self.word(0);
            // SAFETY: some bit below len is set, so the word exists; Slurm's locks make this the only writer.
            unsafe {
                match value {
                    true => *word |= bits,
                    false => *word &= !bits,
                }
            }
        }
    }

    /// Clears all bits.
    pub fn clear(self) {
        for index in 0..self.len().div_ceil(64) {
            // SAFETY: index is within the words that `len` bits take.
            unsafe { self.word(index).write(0) }
        }
    }

    /// Copies the words into `to`, to be put back by [`Bitmap::restore`].
    pub fn save(self, to: &mut Vec<u64>) {
        to.clear();
        to.extend((0..self.len().div_ceil(64)).map(|index| self.chunk(index)));
    }

    /// Puts back what [`Bitmap::save`] copied from a bitmap of the same length.
    pub fn restore(self, from: &[u64]) {
        for (index, word) in from.iter().enumerate().take(self.len().div_ceil(64)) {
            // SAFETY: index is within the words that `len` bits take.
            unsafe { self.word(index).write(*word) }
        }
    }

    /// Number of set bits.
    pub fn count(self) -> usize {
        (0..self.len().div_ceil(64))
            .map(|i| self.chunk(i).count_ones() as usize)
            .sum()
    }

    /// Number of set bits in a range; past the end there are none.
    pub fn count_in(self, range: std::ops::Range<usize>) -> usize {
        let end = range.end.min(self.len());
        let mut at = range.start;
        let mut count = 0;
        while at < end {
            let last = (at / 64 * 64 + 64).min(end);
            let bits = self.chunk(at / 64) >> (at % 64);
            let wide = last - at;
            let kept = match wide {
                64 => bits,
                _ => bits & ((1 << wide) - 1),
            };
            count += kept.count_ones() as usize;
            at = last;
        }
        count
    }

    /// The set bits, lowest first.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..self.len().div_ceil(64)).flat_map(move |index| {
            let mut rest = self.chunk(index);
            std::iter::from_fn(move || {
                let bit = rest.trailing_zeros() as usize;
                (rest != 0).then(|| {
                    rest &= rest - 1;
                    index * 64 + bit
                })
            })
        })
    }
}

/// The words of a bitmap of `bits` bits, none set, in this process' own memory: for Slurm to read, never
/// to free.
pub fn zeroed(bits: usize) -> Box<[u64]> {
    let mut words = vec![0; 2 + bits.div_ceil(64)];
    (words[0], words[1]) = (MAGIC, bits as u64);
    words.into()
}

/// Checks by reads that cannot fault that `address` is a bitmap; gives its number of bits and set bits.
pub fn probe(address: usize) -> Option<(usize, usize)> {
    let magic: u64 = mem::read(address)?;
    let bits: u64 = mem::read(address + 8)?;
    if magic != MAGIC || bits > 1 << 24 {
        return None;
    }
    let words = mem::read_bytes(address + 16, (bits as usize).div_ceil(64) * 8)?;
    let set = words.iter().map(|b| b.count_ones() as usize).sum();
    Some((bits as usize, set))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_slurms_form() {
        let mut words = [MAGIC, 70, 0, u64::MAX];
        // SAFETY: a bitmap of 70 bits in two words, alive to the end of the test.
        let map = unsafe { Bitmap::new(words.as_mut_ptr().cast()) }.expect("magic");
        assert_eq!((map.len(), map.count()), (70, 6));
        map.set_bit(3, true);
        map.set_bit(64, false);
        map.set_bit(70, true);
        assert_eq!(map.iter().collect::<Vec<_>>(), [3, 65, 66, 67, 68, 69]);
        map.set_low_bits(0b1010, false);
        map.set_low_bits(1 << 63, true);
        assert_eq!(map.iter().collect::<Vec<_>>(), [63, 65, 66, 67, 68, 69]);
        assert_eq!(probe(words.as_ptr() as usize).map(|p| p.0), Some(70));
        for range in [0..70, 0..0, 3..4, 60..66, 63..64, 64..70, 65..200, 70..80] {
            let set = map.iter().filter(|bit| range.contains(bit)).count();
            assert_eq!(map.count_in(range.clone()), set, "{range:?}");
        }
        words[0] = 7;
        // SAFETY: as above.
        assert!(unsafe { Bitmap::new(words.as_mut_ptr().cast()) }.is_none());
        assert_eq!(probe(words.as_ptr() as usize), None);
    }
}

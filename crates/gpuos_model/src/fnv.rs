//! FNV-1a, <http://www.isthe.com/chongo/tech/comp/fnv/>: a short number for a text, the same on every machine.

/// The 64-bit hash of some bytes. Nobody is kept from making two texts of the same number.
pub fn fnv(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325_u64;
    bytes.into_iter().fold(start, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_is_the_published_one() {
        assert_eq!(super::fnv(*b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(super::fnv(*b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(super::fnv(*b"foobar"), 0x8594_4171_f739_67e8);
    }
}

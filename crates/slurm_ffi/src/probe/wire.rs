//! Slurm's packed form: numbers with their highest byte first, texts and arrays behind their length.

/// Bytes as `pack16` and its like write them.
#[derive(Default)]
pub struct Wire(pub Vec<u8>);

/// Slurm's "no bitmap".
const NONE: u32 = 0xffff_fffe;

impl Wire {
    pub fn u8(mut self, value: u8) -> Wire {
        self.0.push(value);
        self
    }

    pub fn u16(mut self, value: u16) -> Wire {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub fn u32(mut self, value: u32) -> Wire {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub fn u64(mut self, value: u64) -> Wire {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub fn text(mut self, text: &str) -> Wire {
        self = self.u32(text.len() as u32 + 1);
        self.0.extend(text.as_bytes());
        self.u8(0)
    }

    pub fn array16(self, values: &[u16]) -> Wire {
        let start = self.u32(values.len() as u32);
        values.iter().fold(start, |wire, value| wire.u16(*value))
    }

    pub fn array32(self, values: &[u32]) -> Wire {
        let start = self.u32(values.len() as u32);
        values.iter().fold(start, |wire, value| wire.u32(*value))
    }

    pub fn array64(self, values: &[u64]) -> Wire {
        let start = self.u32(values.len() as u32);
        values.iter().fold(start, |wire, value| wire.u64(*value))
    }

    pub fn texts(self, values: &[&str]) -> Wire {
        let start = self.u32(values.len() as u32);
        values.iter().fold(start, |wire, value| wire.text(value))
    }

    /// A bitmap, as Slurm's `pack_bit_str_hex` writes it: its length, and its bits in hexadecimal.
    pub fn bits(self, len: u32, bits: u64) -> Wire {
        self.u32(len).text(&format!("0x{bits:X}"))
    }

    pub fn no_bits(self) -> Wire {
        self.u32(NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::Wire;

    #[test]
    fn bytes_as_slurm_packs_them() {
        let wire = Wire::default()
            .u16(0x102)
            .text("ab")
            .array16(&[3])
            .bits(8, 0x5);
        let bytes = [
            1, 2, 0, 0, 0, 3, b'a', b'b', 0, 0, 0, 0, 1, 0, 3, 0, 0, 0, 8, 0, 0, 0, 4, b'0', b'x',
            b'5', 0,
        ];
        assert_eq!(wire.0, bytes);
    }
}

//! What a C compiler makes of a list of fields: each stands at the first place after the one before that fits its
//! alignment, and the whole ends at a multiple of the largest alignment.
//!
//! Every row of the table obeys that, in every release. Rows that do not were shifted, or some are missing; and as
//! the rows are complete, they say how large the structure is. Slurm's allocator knows that too: see
//! [`crate::sizes`].

/// Where a field stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// In bytes from the start of the structure.
    pub offset: u32,
    /// In bytes.
    pub size: u32,
    /// Whether it is a number or a pointer, whose alignment is its size.
    pub scalar: bool,
}

impl Place {
    /// The first byte after it.
    pub fn end(self) -> u32 {
        self.offset + self.size
    }

    /// What its offset is a multiple of. Of a structure within the structure only a lower bound is known.
    pub fn alignment(self) -> u32 {
        if self.scalar { self.size } else { 1 }
    }
}

/// The largest alignment there is. What is no number or pointer may have it.
const LARGEST: u32 = 8;

/// Whether a C type of this size is a number or a pointer.
pub fn is_scalar(ctype: &str, size: u32) -> bool {
    matches!(size, 1 | 2 | 4 | 8) && !ctype.ends_with(']')
}

/// Size in bytes of a structure with these fields, which are put into their order.
pub fn size(fields: &mut [(&str, Place)]) -> Result<usize, String> {
    fields.sort_unstable_by_key(|(_, place)| place.offset);
    let (mut end, mut before) = (0_u32, "its start");
    for (name, place) in fields.iter() {
        let exact = end.next_multiple_of(place.alignment());
        let loose = !place.scalar && (end..end + LARGEST).contains(&place.offset);
        if place.offset != exact && !loose {
            return Err(format!(
                "{name} stands at {}, where after {before} it would stand at {exact}",
                place.offset
            ));
        }
        (end, before) = (place.end(), name);
    }
    let alignments = fields.iter().map(|(_, place)| match place.scalar {
        true => place.size,
        false => LARGEST,
    });
    match alignments.max() {
        None => Err("there are none".into()),
        Some(largest) => Ok(end.next_multiple_of(largest) as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(offset: u32, size: u32) -> (&'static str, Place) {
        let scalar = is_scalar("uint32_t", size);
        let place = Place {
            offset,
            size,
            scalar,
        };
        ("a field", place)
    }

    #[test]
    fn structures_and_what_is_none() {
        for (fields, whole) in [
            (vec![field(0, 4), field(4, 2), field(8, 8)], Some(16)),
            (vec![field(8, 8), field(4, 2), field(0, 4)], Some(16)),
            (vec![field(0, 12), field(12, 2), field(16, 2)], None),
            (vec![field(0, 2), field(2, 2), field(4, 2)], Some(6)),
            (vec![field(0, 4), field(4, 2)], Some(8)),
            (vec![field(0, 12)], Some(16)),
            (vec![field(0, 8), field(8, 2)], Some(16)),
            // A hole, no alignment, and one over the other.
            (vec![field(0, 8), field(16, 8)], None),
            (vec![field(0, 8), field(12, 8)], None),
            (vec![field(0, 8), field(4, 4)], None),
            (vec![field(4, 4)], None),
            (vec![], None),
        ] {
            let mut fields = fields;
            assert_eq!(size(&mut fields).ok(), whole, "{fields:?}");
        }
    }
}

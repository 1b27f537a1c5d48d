//! Texts that several functions give: UUIDs, bus ids and names.

use nvml_wrapper_sys::bindings::nvmlUUID_v1_t;

use crate::model::Kind;
use crate::state::uuid_text;

/// The PCI address of a GPU, with a domain of that many hexadecimal digits.
pub(crate) fn bus_id(kind: &Kind, gpu: usize, digits: usize) -> String {
    let bus = kind.buses.get(gpu).copied().unwrap_or(0);
    format!("{:0digits$X}:{bus:02X}:00.0", 0)
}

/// A text in a field of a structure; what does not fit is cut.
pub(crate) fn chars<const N: usize>(text: &str) -> [std::ffi::c_char; N] {
    let mut field = [0; N];
    for (place, byte) in field.iter_mut().take(N - 1).zip(text.bytes()) {
        // A C character has a sign on some machines and none on others.
        *place = std::ffi::c_char::from_ne_bytes([byte]);
    }
    field
}

/// The text of a UUID argument: type 1 is text, type 2 sixteen bytes.
pub(crate) fn uuid_argument(uuid: &nvmlUUID_v1_t) -> Option<String> {
    // SAFETY: both members are arrays of bytes, and every byte of the union is initialised: a C
    // caller gave it whole.
    unsafe {
        match uuid.type_ {
            1 => {
                let bytes = uuid.value.str_.iter().map(|c| c.to_ne_bytes()[0]);
                let text: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
                String::from_utf8(text).ok()
            }
            2 => Some(uuid_text(&uuid.value.bytes)),
            _ => None,
        }
    }
}

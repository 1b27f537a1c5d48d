#![no_main]

use gpuosd::store::{decode, encode, sealed};

// Damage is found by the checksum; behind a right one anything may stand that JSON can say.
libfuzzer_sys::fuzz_target!(|body: &[u8]| {
    let _ = decode(body);
    if let Ok(saved) = decode(&sealed(body)) {
        assert_eq!(decode(&encode(&saved)), Ok(saved));
    }
});

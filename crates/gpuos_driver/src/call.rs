//! Calling a function whose arguments are numbers and pointers.

use super::{Code, code};

/// Calls a function of the driver: all its arguments are numbers and pointers, which the C ABIs of both architectures pass as words, in
/// registers and on the stack. Without an address, and with more words than any function here has, it gives an error.
///
/// # Safety
/// The address is that of a function of the driver, or 0, and the words are its arguments: as many, and pointers to what it wants, for as
/// long as it wants that.
pub unsafe fn call(address: usize, a: &[u64]) -> Code {
    macro_rules! by_count {
        ($( $count:literal: $($i:literal)*; )*) => {
            match a.len() {
                $( $count => {
                    type Function = unsafe extern "C" fn($( by_count!(@ $i) ),*) -> Code;
                    // SAFETY: the caller's promise.
                    unsafe { std::mem::transmute::<usize, Function>(address)($( a[$i] ),*) }
                } )*
                _ => code::UNKNOWN,
            }
        };
        (@ $i:literal) => { u64 };
    }
    if address == 0 {
        return code::NOT_FOUND;
    }
    by_count! {
        0: ;
        1: 0;
        2: 0 1;
        3: 0 1 2;
        4: 0 1 2 3;
        5: 0 1 2 3 4;
        6: 0 1 2 3 4 5;
        7: 0 1 2 3 4 5 6;
        8: 0 1 2 3 4 5 6 7;
        11: 0 1 2 3 4 5 6 7 8 9 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn digits(a: u64, b: u64, c: u64) -> Code {
        (a * 100 + b * 10 + c) as Code
    }

    #[test]
    fn words_arrive_in_their_order() {
        let function: extern "C" fn(u64, u64, u64) -> Code = digits;
        let address = function as *const () as usize;
        // SAFETY: a function of three words.
        let three = unsafe { call(address, &[1, 2, 3]) };
        // SAFETY: there is no function, so none is called; and none has so many words.
        let (none, many) = unsafe { (call(0, &[]), call(address, &[0; 12])) };
        assert_eq!((three, none, many), (123, code::NOT_FOUND, code::UNKNOWN));
    }
}

//! Zeros between a few bytes. An extent that is all zero is kept as such, and one that mostly is would take as much as a full one: a file of one byte in
//! each extent takes a page for each of them in its program's folder, and five hundred times as much in a store.

use std::ops::Range;

use gpuos_checkpoint::manifest::ALIGNMENT;

const PAGE: usize = ALIGNMENT as usize;

/// Whether half of its pages or more are zero.
pub(crate) fn is_sparse(bytes: &[u8]) -> bool {
    let pages = bytes.len().div_ceil(PAGE);
    let zero = bytes.chunks(PAGE).filter(|page| is_zero(page)).count();
    pages > 1 && 2 * zero >= pages
}

/// Runs of pages that are not zero, in their order.
pub(crate) fn runs(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (number, page) in bytes.chunks(PAGE).enumerate() {
        if is_zero(page) {
            continue;
        }
        let start = number * PAGE;
        let end = start + page.len();
        match runs.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => runs.push(start..end),
        }
    }
    runs
}

fn is_zero(page: &[u8]) -> bool {
    page.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_what_is_not_zero_in_whole_pages() {
        let mut bytes = vec![0; 5 * PAGE + 10];
        assert!(runs(&bytes).is_empty() && is_sparse(&bytes));
        bytes[0] = 1;
        bytes[2 * PAGE] = 1;
        bytes[4 * PAGE - 1] = 1;
        bytes[5 * PAGE + 9] = 1;
        assert_eq!(
            runs(&bytes),
            [0..PAGE, 2 * PAGE..4 * PAGE, 5 * PAGE..5 * PAGE + 10]
        );
        // Four of six are not.
        assert!(!is_sparse(&bytes));
        bytes[0] = 0;
        assert!(is_sparse(&bytes));
        // A single page saves nothing.
        assert!(!is_sparse(&[0; 100]) && !is_sparse(&[]));
    }
}

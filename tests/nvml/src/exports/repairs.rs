//! What memory has repaired: retired pages on older boards, remapped rows on newer ones.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlRepairStatus_v1_t, nvmlRowRemapperHistogramValues_st,
};

use super::call::{Answer, code};
use super::session::{View, answer};
use super::{Block, Out, Versioned, gpu, nvml};
use crate::latency::Cost::Driver;
use crate::state::{MAX_PAGES, Page};

fn pages(view: &View<'_>, cause: c_uint) -> Answer<Vec<Page>> {
    if !view.board.retires_pages() {
        return Err(code::UNSUPPORTED);
    }
    if cause > 1 {
        return Err(code::INVALID);
    }
    let known = &view.gpu.pages[..(view.gpu.page_count as usize).min(MAX_PAGES)];
    Ok(known
        .iter()
        .filter(|page| page.cause == cause)
        .copied()
        .collect())
}

fn remaps_rows(view: &View<'_>) -> Answer<()> {
    // A divided GPU does not say.
    match view.board.row_banks > 0 && !view.gpu.mig_on() {
        true => Ok(()),
        false => Err(code::UNSUPPORTED),
    }
}

nvml! {
    fn nvmlDeviceGetRetiredPages(
        device: nvmlDevice_t,
        cause: c_uint,
        count: Out<c_uint>,
        addresses: Block<c_ulonglong>,
    ) {
        let pages = gpu(device, Driver, |view| pages(&view, cause))?;
        let list: Vec<_> = pages.iter().map(|page| page.address).collect();
        addresses.list(&count, &list)
    }
    fn nvmlDeviceGetRetiredPages_v2(
        device: nvmlDevice_t,
        cause: c_uint,
        count: Out<c_uint>,
        addresses: Block<c_ulonglong>,
        times: Block<c_ulonglong>,
    ) {
        let pages = gpu(device, Driver, |view| pages(&view, cause))?;
        let list: Vec<_> = pages.iter().map(|page| page.address).collect();
        let room = count.get()?;
        addresses.list(&count, &list)?;
        if !times.is_null() && room as usize >= pages.len() {
            for (index, page) in pages.iter().enumerate() {
                times.put(index, page.time_us)?;
            }
        }
        Ok(())
    }
    fn nvmlDeviceGetRetiredPagesPendingStatus(device: nvmlDevice_t, out: Out<c_uint>) {
        answer(device, &out, Driver, |view| {
            let mut all = pages(&view, 0)?;
            all.extend(pages(&view, 1)?);
            Ok(u32::from(all.iter().any(|page| page.pending != 0)))
        })
    }
    fn nvmlDeviceGetRemappedRows(
        device: nvmlDevice_t,
        corrected: Out<c_uint>,
        uncorrected: Out<c_uint>,
        pending: Out<c_uint>,
        failed: Out<c_uint>,
    ) {
        let rows = gpu(device, Driver, |view| {
            remaps_rows(&view)?;
            let gpu = view.gpu;
            Ok([gpu.rows_corrected, gpu.rows_uncorrected, gpu.rows_pending, gpu.rows_failed])
        })?;
        for (out, value) in [corrected, uncorrected, pending, failed].iter().zip(rows) {
            out.set(value)?;
        }
        Ok(())
    }
    fn nvmlDeviceGetRowRemapperHistogram(
        device: nvmlDevice_t,
        out: Out<nvmlRowRemapperHistogramValues_st>,
    ) {
        answer(device, &out, Driver, |view| {
            remaps_rows(&view)?;
            let banks = view.board.row_banks;
            // Each remapped row takes one spare of a bank of its own.
            let used = view.gpu.rows_corrected + view.gpu.rows_uncorrected;
            let none = view.gpu.banks_exhausted.min(banks);
            let high = used.min(banks - none);
            Ok(nvmlRowRemapperHistogramValues_st {
                max: banks - none - high,
                high,
                partial: 0,
                low: 0,
                none,
            })
        })
    }
    fn nvmlDeviceGetRepairStatus(device: nvmlDevice_t, out: Versioned<nvmlRepairStatus_v1_t>) {
        out.check(1)?;
        let pending = gpu(device, Driver, |view| {
            remaps_rows(&view)?;
            Ok(view.gpu.rows_pending)
        })?;
        out.set(nvmlRepairStatus_v1_t {
            version: 0,
            bChannelRepairPending: pending,
            bTpcRepairPending: 0,
        })
    }
}

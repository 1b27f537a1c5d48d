//! What a GRES plugin shares with Slurm: the records of gres.conf, the devices that the task plugin allows or
//! denies, environments, and what slurmd hands to slurmstepd.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use crate::api::{ForEach, api};
use crate::bits::{self, Bitmap};
use crate::conf;
use crate::layout::{Fields, GresConf, GresDevice, GresEpilog, GresHeld, GresPrep};
use crate::mem::{read, read_text};
use crate::release::Release;
use crate::sizes;

api! {
    /// The functions that a GRES plugin calls; slurmd and slurmstepd have them too.
    GresApi {
        /// `list_t *list_create(ListDelF)`
        list_create = c"slurm_list_create": fn(*const c_void) -> *mut c_void;
        /// `void list_append(list_t *, void *)`, with a result before 24.05
        list_append = c"slurm_list_append": fn(*mut c_void, *mut c_void);
        /// `int list_for_each(list_t *, ListForF, void *)`
        list_for_each = c"slurm_list_for_each": fn(*mut c_void, ForEach, *mut c_void) -> c_int;
        /// `void packmem(void *, uint32_t, buf_t *)`
        packmem = c"slurm_packmem": fn(*const c_char, u32, *mut c_void);
        /// `int unpackmem_ptr(char **, uint32_t *, buf_t *)`
        unpackmem_ptr = c"slurm_unpackmem_ptr": fn(*mut *mut c_char, *mut u32, *mut c_void) -> c_int;
        /// `int env_array_overwrite(char ***, const char *name, const char *value)`
        env_array_overwrite = c"slurm_env_array_overwrite": fn(*mut *mut *mut c_char, *const c_char, *const c_char) -> c_int;
        /// `void unsetenvp(char **, const char *)`
        unsetenvp = c"slurm_unsetenvp": fn(*mut *mut c_char, *const c_char);
        /// `bitstr_t *bit_copy(bitstr_t *)`
        bit_copy = c"slurm_bit_copy": fn(*mut c_void) -> *mut c_void;
        /// `void *slurm_xcalloc(count, size, clear, try, file, line, func)`
        xcalloc = c"slurm_xcalloc": fn(usize, usize, bool, bool, *const c_char, c_int, *const c_char) -> *mut c_void;
        /// `void slurm_xfree(void **)`
        xfree = c"slurm_xfree": fn(*mut *mut c_void);
    }
}

/// The longest text of a record of gres.conf, and of all that slurmstepd is handed, in bytes.
const MAX_TEXT: usize = 1 << 16;

/// More nodes than any job has: a larger number is no number of nodes.
const SANE_NODES: u32 = 1 << 20;

/// `DEV_TYPE_CHAR` of `gres_device_type_t`, the same in every known release.
const CHARACTER_DEVICE: u32 = 2;

/// 64-bit words of a [`DeviceRecord`]: more than `gres_device_t` has in any release.
const RECORD_WORDS: usize = 8;

/// A device that the task plugin allows to whoever holds bit `index`, and denies all others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// The bit.
    pub index: u32,
    /// Its file. Of devices with the same path Slurm keeps one, allowed when the bit of any of them is held.
    pub path: CString,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

/// The memory of a `gres_device_t`.
type DeviceRecord = [u64; RECORD_WORDS];

/// What prolog and epilog are told, and where its fields are: `gres_prep_t`, in 22.05 `gres_epilog_info_t`.
#[derive(Clone, Copy, Debug)]
struct Prep {
    node_cnt: usize,
    gres_bit_alloc: usize,
}

/// Offsets and functions of the release that runs.
pub struct GresPlugin {
    api: &'static GresApi,
    conf: GresConf,
    device: GresDevice,
    held: GresHeld,
    prep: Prep,
}

impl GresPlugin {
    /// For exactly this release.
    ///
    /// # Errors
    /// A sentence that says what the layout table or the daemon lacks.
    pub fn new(release: Release) -> Result<GresPlugin, String> {
        let api = GresApi::get().map_err(|name| format!("this daemon has no function {name}"))?;
        GresPlugin::of(&conf::fields(release)?, api)
    }

    fn of(fields: &Fields, api: &'static GresApi) -> Result<GresPlugin, String> {
        let prep = match (GresPrep::of(fields), GresEpilog::of(fields)) {
            (Ok(prep), _) => Prep {
                node_cnt: prep.node_cnt,
                gres_bit_alloc: prep.gres_bit_alloc,
            },
            (_, Ok(prep)) => Prep {
                node_cnt: prep.node_cnt,
                gres_bit_alloc: prep.gres_bit_alloc,
            },
            (Err(why), _) => return Err(why),
        };
        let device = GresDevice::of(fields)?;
        // All of them, 12 bytes of dev_desc included, lie in the record that is made for them.
        let last = [
            device.index,
            device.alloc,
            device.dev_desc,
            device.dev_num,
            device.path,
            prep.node_cnt,
            prep.gres_bit_alloc,
        ];
        if last
            .iter()
            .any(|offset| *offset > size_of::<DeviceRecord>() - 16)
        {
            return Err("the layout table has a gres_device or gres_prep that cannot be".into());
        }
        Ok(GresPlugin {
            api,
            conf: GresConf::of(fields)?,
            device,
            held: GresHeld::of(fields)?,
            prep,
        })
    }

    /// `File=` of the records of GRES `name`, in their order, which is that of the bits.
    ///
    /// # Safety
    /// `list` is null or Slurm's live list of `gres_slurmd_conf_t`.
    pub unsafe fn files(&self, list: *mut c_void, name: &str) -> Vec<String> {
        let mut records: Vec<usize> = Vec::new();
        if list.is_null() {
            return Vec::new();
        }
        // SAFETY: the list is live, `collect` neither keeps nor changes what is in it, and its argument is the
        // vector that it expects.
        unsafe {
            (self.api.list_for_each)(list, collect, (&raw mut records).cast());
        }
        let text = |record: usize, offset: usize| {
            let text = read_text(read::<usize>(record + offset)?, MAX_TEXT)?;
            String::from_utf8(text).ok()
        };
        let own = records
            .into_iter()
            .filter(|record| sizes::allocated(*record) == Some(self.conf.whole))
            .filter(|record| text(*record, self.conf.name).as_deref() == Some(name));
        own.filter_map(|record| text(record, self.conf.file))
            .collect()
    }

    /// A list of `gres_device_t` as the task plugin wants it; null without memory. Slurm notes in the devices
    /// who may open them and frees neither list nor devices: they stay for as long as the process.
    pub fn device_list(&self, devices: &[Device]) -> *mut c_void {
        // SAFETY: a list without a function to free what is in it.
        let list = unsafe { (self.api.list_create)(std::ptr::null()) };
        if list.is_null() {
            return list;
        }
        for device in devices {
            let record: *mut DeviceRecord = Box::into_raw(Box::new([0; RECORD_WORDS]));
            let path = device.path.clone().into_raw();
            let number = trailing_number(&device.path);
            // SAFETY: `of` has checked that every offset leaves 16 bytes of the record.
            unsafe {
                let record = record.cast::<u8>();
                let desc = record.add(self.device.dev_desc);
                record
                    .add(self.device.index)
                    .cast::<u32>()
                    .write_unaligned(device.index);
                desc.cast::<u32>().write_unaligned(device.major);
                desc.add(4).cast::<u32>().write_unaligned(device.minor);
                desc.add(8).cast::<u32>().write_unaligned(CHARACTER_DEVICE);
                record
                    .add(self.device.dev_num)
                    .cast::<i32>()
                    .write_unaligned(number);
                record
                    .add(self.device.path)
                    .cast::<*mut c_char>()
                    .write_unaligned(path);
            }
            // SAFETY: the list was made above; the record lives on.
            unsafe { (self.api.list_append)(list, record.cast()) }
        }
        list
    }

    /// Sets a variable of an environment, or takes it away.
    ///
    /// # Safety
    /// `env` is null or a place with Slurm's array of variables, or with null.
    pub unsafe fn set_env(&self, env: *mut *mut *mut c_char, name: &CStr, value: Option<&str>) {
        if env.is_null() {
            return;
        }
        match value.and_then(|value| CString::new(value).ok()) {
            // SAFETY: by the caller; both texts are copied.
            Some(value) => unsafe {
                (self.api.env_array_overwrite)(env, name.as_ptr(), value.as_ptr());
            },
            // SAFETY: by the caller; what is taken away was in that array.
            None => unsafe {
                if !(*env).is_null() {
                    (self.api.unsetenvp)(*env, name.as_ptr());
                }
            },
        }
    }

    /// What prolog and epilog of a job are told: a `gres_prep_t` on Slurm's heap, which Slurm completes and
    /// frees, or null.
    ///
    /// # Safety
    /// `job` is null or points to a live `gres_job_state_t`.
    pub unsafe fn prep(&self, job: *mut c_void) -> *mut c_void {
        let null = std::ptr::null_mut();
        let job = job as usize;
        let maps = (job != 0).then(|| {
            if sizes::allocated(job) != Some(self.held.whole) {
                return None;
            }
            let nodes: u32 = read(job + self.held.node_cnt)?;
            let maps: usize = read(job + self.held.gres_bit_alloc)?;
            (maps != 0 && (1..=SANE_NODES).contains(&nodes)).then_some((nodes, maps))
        });
        let Some((nodes, maps)) = maps.flatten() else {
            return null;
        };
        let mut made = self.zeroed(1, size_of::<DeviceRecord>());
        let copies = self
            .zeroed(nodes as usize, size_of::<usize>())
            .cast::<*mut c_void>();
        if made.is_null() || copies.is_null() {
            let mut copies = copies.cast::<c_void>();
            // SAFETY: both are null or were made above, and nobody has seen them; xfree takes null.
            unsafe {
                (self.api.xfree)(&raw mut made);
                (self.api.xfree)(&raw mut copies);
            }
            return null;
        }
        for index in 0..nodes as usize {
            let map = read::<usize>(maps + index * 8).filter(|map| bits::probe(*map).is_some());
            if let Some(map) = map {
                // SAFETY: a bitmap, which is only read; `copies` has a place for each node.
                unsafe {
                    copies
                        .add(index)
                        .write((self.api.bit_copy)(map as *mut c_void))
                }
            }
        }
        // SAFETY: `of` has checked that both fields lie in what was made.
        unsafe {
            let made = made.cast::<u8>();
            made.add(self.prep.node_cnt)
                .cast::<u32>()
                .write_unaligned(nodes);
            let place = made.add(self.prep.gres_bit_alloc);
            place.cast::<*mut *mut c_void>().write_unaligned(copies);
        }
        made
    }

    /// The bitmap of a node in a `gres_prep_t`; null when there is none.
    pub fn prep_bits(&self, prep: *mut c_void, node: c_int) -> *mut c_void {
        let prep = prep as usize;
        let found = (prep != 0).then(|| {
            let nodes: u32 = read(prep + self.prep.node_cnt)?;
            let node = u32::try_from(node).ok().filter(|node| *node < nodes)?;
            let maps: usize = read(prep + self.prep.gres_bit_alloc)?;
            let map: usize = read(maps.checked_add(node as usize * 8)?)?;
            bits::probe(map).map(|_| map)
        });
        found.flatten().unwrap_or(0) as *mut c_void
    }

    /// Puts a text into what slurmd hands to slurmstepd.
    ///
    /// # Safety
    /// `buffer` is Slurm's live `buf_t`.
    pub unsafe fn send(&self, buffer: *mut c_void, text: &str) {
        let text = if text.len() <= MAX_TEXT { text } else { "" };
        // SAFETY: by the caller; `text` has as many bytes as said and is copied.
        unsafe { (self.api.packmem)(text.as_ptr().cast(), text.len() as u32, buffer) }
    }

    /// Takes what [`GresPlugin::send`] has put there; `None` when it is not there.
    ///
    /// # Safety
    /// As [`GresPlugin::send`].
    pub unsafe fn receive(&self, buffer: *mut c_void) -> Option<String> {
        let (mut text, mut length) = (std::ptr::null_mut::<c_char>(), 0u32);
        // SAFETY: by the caller; both places are ours.
        let rc = unsafe { (self.api.unpackmem_ptr)(&raw mut text, &raw mut length, buffer) };
        let length = usize::try_from(length)
            .ok()
            .filter(|length| *length <= MAX_TEXT);
        let length = length.filter(|_| rc == 0 && !text.is_null())?;
        // SAFETY: unpackmem_ptr has found that many bytes there, within the buffer.
        let bytes = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), length) };
        String::from_utf8(bytes.to_vec()).ok()
    }

    fn zeroed(&self, count: usize, size: usize) -> *mut c_void {
        let (file, name) = (c"gpuos".as_ptr(), c"gres".as_ptr());
        // SAFETY: in "try" mode it gives zeroed memory of that size, or null.
        unsafe { (self.api.xcalloc)(count, size, true, true, file, 0, name) }
    }
}

/// Number of bits of a bitmap and the first 64 of them; `None` when it is none.
///
/// # Safety
/// `bits` is null or a live `bitstr_t`.
pub unsafe fn first_bits(bits: *mut c_void) -> Option<(usize, u64)> {
    // SAFETY: by the caller; it is looked at during this call alone.
    let map = unsafe { Bitmap::new(bits) }?;
    Some((map.len(), map.chunk(0)))
}

unsafe extern "C" fn collect(record: *mut c_void, to: *mut c_void) -> c_int {
    // SAFETY: `files` hands its vector, which nobody else uses meanwhile.
    let to = unsafe { &mut *to.cast::<Vec<usize>>() };
    to.push(record as usize);
    0
}

/// The number at the end of a file name, as Slurm shows it; -1 without one.
fn trailing_number(path: &CStr) -> i32 {
    let text = path.to_bytes();
    let digits = text.iter().rev().take_while(|byte| byte.is_ascii_digit());
    let from = text.len() - digits.count();
    let number = std::str::from_utf8(&text[from..]);
    number.ok().and_then(|text| text.parse().ok()).unwrap_or(-1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_release_has_what_the_plugin_reads() {
        for line in include_str!("../data/versions.txt")
            .lines()
            .filter(|l| !l.is_empty())
        {
            let release = Release::parse(line).expect("a release");
            let fields = Fields::of(release, None).expect("rows");
            GresConf::of(&fields).expect("gres_slurmd_conf");
            GresDevice::of(&fields).expect("gres_device");
            GresHeld::of(&fields).expect("gres_job_state");
            let prep = [
                GresPrep::of(&fields).is_ok(),
                GresEpilog::of(&fields).is_ok(),
            ];
            assert_eq!(
                prep,
                [
                    release >= Release::new(23, 2, 0),
                    release < Release::new(23, 2, 0)
                ]
            );
        }
    }

    #[test]
    fn numbers_of_device_files() {
        for (path, number) in [
            (c"/dev/nvidia12", 12),
            (c"/dev/nvidia-caps/nvidia-cap3", 3),
            (c"/dev/null", -1),
            (c"/d/99999999999", -1),
        ] {
            assert_eq!(trailing_number(path), number, "{path:?}");
        }
    }
}

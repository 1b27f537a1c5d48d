//! Probe objects of GRES: requests of jobs, and what nodes have.

use std::ffi::{c_char, c_int, c_void};

use super::wire::Wire;
use super::{Answer, No, Probe, buffer, function, same, same_bits, same_text, store, text, zeroed};
use crate::api::Api;
use crate::bits;
use crate::mem::read;
use crate::release::Release;
use crate::sizes;

/// Slurm's mark of packed GRES (src/common/gres.h, src/interfaces/gres.h).
const GRES_MAGIC: u32 = 0x438a_34d4;

/// The requests have other arrays from here on.
const PER_BIT_FROM: Release = Release::new(23, 11, 0);
/// Nodes are saved with their topology from here on,
const TOPOLOGY_FROM: Release = Release::new(23, 2, 0);
/// and with the cores that are kept for GPUs.
const RESERVED_FROM: Release = Release::new(24, 5, 0);
/// Copies have what was selected from here on.
const COPIES_SELECTION_FROM: Release = Release::new(24, 11, 0);

/// Slurm's "not set": what a node has found before it registers.
const NO_VAL64: u64 = 0xffff_ffff_ffff_fffe;

type Unpack = unsafe extern "C" fn(*mut *mut c_void, *mut c_void, *const c_char, u16) -> c_int;

/// Slurm's number of the protocol of a release: one more with each, 38 in 22.05.
pub(super) fn protocol(release: Release) -> u16 {
    const NAMES: [(u32, u32); 8] = [
        (22, 5),
        (23, 2),
        (23, 11),
        (24, 5),
        (24, 11),
        (25, 5),
        (25, 11),
        (26, 5),
    ];
    let newer = |(major, minor): &&(u32, u32)| release >= Release::new(*major, *minor, 0);
    (37 + NAMES.iter().filter(newer).count() as u16) << 8
}

fn api() -> Result<&'static Api, No> {
    Api::get().map_err(|name| No::Skip(format!("this Slurm has no {name}")))
}

fn gpu(api: &Api) -> u32 {
    // SAFETY: uint32_t gres_build_id(char *), which only hashes the string.
    unsafe { (api.gres_build_id)(c"gpu".as_ptr()) }
}

/// The data of GRES `gpu` in a list that Slurm made, after a look at its entry.
fn data(
    probe: &Probe<'_>,
    api: &Api,
    list: *mut c_void,
    structure: &str,
    whole: usize,
) -> Result<usize, No> {
    unsafe extern "C" fn each(item: *mut c_void, argument: *mut c_void) -> c_int {
        // SAFETY: the vector below.
        unsafe { (*argument.cast::<Vec<usize>>()).push(item as usize) };
        0
    }
    let mut items: Vec<usize> = Vec::new();
    if list.is_null() {
        return Err(No::Skip("no GRES is configured".into()));
    }
    // SAFETY: a list of Slurm's; `each` gets the vector that it expects.
    unsafe { (api.list_for_each)(list, each, (&raw mut items).cast()) };
    let fields = &probe.layout.gres;
    let id = gpu(api);
    for item in items {
        sizes::exactly(item, "gres_state", fields.whole)?;
        if read::<u32>(item + fields.plugin_id) == Some(id) {
            let name = probe.fields.offset("gres_state", "gres_name")?;
            same_text(item, name, "gpu", "gres_state.gres_name")?;
            let data = read::<usize>(item + fields.gres_data).unwrap_or(0);
            sizes::exactly(data, structure, whole)?;
            return Ok(data);
        }
    }
    Err(No::Skip("GRES gpu is not configured".into()))
}

/// A request that Slurm unpacks.
pub fn unpacked_request(probe: &Probe<'_>) -> Answer {
    type Of = unsafe extern "C" fn(*mut *mut c_void, *mut c_void, u32, u16) -> c_int;
    let unpack = function::<Of>(c"gres_job_state_unpack")?;
    let api = api()?;
    let mut wire = Wire::default()
        .u16(1)
        .u32(GRES_MAGIC)
        .u32(gpu(api))
        // cpus_per_gres, flags, per job, node, socket, task, memory, tasks, in all.
        .u16(0x0a01)
        .u16(0)
        .u64(0x0b01)
        .u64(0x0b02)
        .u64(0x0b03)
        .u64(0x0b04)
        .u64(0x0b05)
        .u16(0x0a02)
        .u64(0x0b06)
        .text("gpuosprobe")
        // Three nodes, no counts, and a bitmap of each.
        .u32(3)
        .u8(0)
        .u8(1)
        .bits(65, 0x15)
        .no_bits()
        .bits(67, 0x2a);
    if probe.release >= PER_BIT_FROM {
        wire = wire.u8(0).u8(0).u8(0);
    }
    wire = wire.u8(0).u8(0);
    if probe.release >= PER_BIT_FROM {
        wire = wire.u8(0).u8(0).u8(0);
    }
    let mut list = std::ptr::null_mut();
    let packed = buffer(wire.0)?;
    // SAFETY: int gres_job_state_unpack(List *, buf_t *, uint32_t, uint16_t).
    let code = unsafe { unpack(&raw mut list, packed, 0, protocol(probe.release)) };
    if code != 0 {
        return Err(No::Misfit(
            "Slurm does not unpack a request for GPUs of its release".into(),
        ));
    }
    let fields = &probe.layout.gres_job;
    let at = data(probe, api, list, "gres_job_state", fields.whole)?;
    same(
        at,
        fields.cpus_per_gres,
        0x0a01_u16,
        "gres_job_state.cpus_per_gres",
    )?;
    same(
        at,
        fields.ntasks_per_gres,
        0x0a02_u16,
        "gres_job_state.ntasks_per_gres",
    )?;
    for (offset, value, name) in [
        (fields.gres_per_job, 0x0b01_u64, "gres_per_job"),
        (fields.gres_per_node, 0x0b02, "gres_per_node"),
        (fields.gres_per_socket, 0x0b03, "gres_per_socket"),
        (fields.gres_per_task, 0x0b04, "gres_per_task"),
        (fields.mem_per_gres, 0x0b05, "mem_per_gres"),
        (fields.gres_bit_select, 0, "gres_bit_select"),
        (fields.gres_cnt_node_select, 0, "gres_cnt_node_select"),
    ] {
        same(at, offset, value, &format!("gres_job_state.{name}"))?;
    }
    same(
        at,
        fields.def_cpus_per_gres,
        0_u16,
        "gres_job_state.def_cpus_per_gres",
    )?;
    same(
        at,
        fields.total_node_cnt,
        0_u32,
        "gres_job_state.total_node_cnt",
    )?;
    same(at, fields.node_cnt, 3_u32, "gres_job_state.node_cnt")?;
    same_text(
        at,
        fields.type_name,
        "gpuosprobe",
        "gres_job_state.type_name",
    )?;
    let given = read::<usize>(at + fields.gres_bit_alloc).unwrap_or(0);
    sizes::array(given, 3, 8, "gres_job_state.gres_bit_alloc")?;
    same_bits(given, 0, 65, 0x15, "gres_job_state.gres_bit_alloc")?;
    same(given, 8, 0_usize, "gres_job_state.gres_bit_alloc")?;
    same_bits(given, 16, 67, 0x2a, "gres_job_state.gres_bit_alloc")?;
    Ok(())
}

/// A request with a selection, filled by the table, that Slurm copies.
pub fn copied_request(probe: &Probe<'_>) -> Answer {
    type Copy = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
    if probe.release < COPIES_SELECTION_FROM {
        return Err(No::Skip(
            "the copies of this release have no selection".into(),
        ));
    }
    let copy = function::<Copy>(c"gres_job_state_dup")?;
    let (at, fields) = (zeroed(), &probe.layout.gres_job);
    let (select, counts, given) = (zeroed(), zeroed(), zeroed());
    store(at, fields.total_node_cnt, 5_u32);
    store(at, fields.node_cnt, 2_u32);
    store(at, fields.gres_bit_select, select);
    store(at, fields.gres_cnt_node_select, counts);
    store(at, fields.gres_bit_alloc, given);
    store(select, 4 * 8, map(70, 0x31));
    store(counts, 4 * 8, 0x0d05_u64);
    store(given, 8, map(71, 0x32));
    // SAFETY: void *gres_job_state_dup(gres_job_state_t *).
    let made = unsafe { copy(at as *mut c_void) } as usize;
    sizes::exactly(made, "gres_job_state", fields.whole)?;
    for (offset, count, name) in [
        (fields.gres_bit_select, 5, "gres_bit_select"),
        (fields.gres_cnt_node_select, 5, "gres_cnt_node_select"),
        (fields.gres_bit_alloc, 2, "gres_bit_alloc"),
    ] {
        let array = read::<usize>(made + offset).unwrap_or(0);
        if sizes::allocated(array) != Some(count * 8) {
            let why = format!("gres_job_state.{name} was not copied with its {count} elements");
            return Err(No::Misfit(why));
        }
        match name {
            "gres_cnt_node_select" => same(array, 4 * 8, 0x0d05_u64, name)?,
            "gres_bit_alloc" => same_bits(array, 8, 71, 0x32, name)?,
            _ => same_bits(array, 4 * 8, 70, 0x31, name)?,
        }
    }
    Ok(())
}

/// A bitmap of Slurm's form.
fn map(len: usize, first: u64) -> usize {
    let at = zeroed();
    for (index, word) in bits::zeroed(len).iter().enumerate() {
        store(at, index * 8, *word);
    }
    store(at, 16, first);
    at
}

/// What a node has of GPUs, unpacked by Slurm.
pub fn unpacked_node(probe: &Probe<'_>) -> Answer {
    if probe.release < TOPOLOGY_FROM {
        return Err(No::Skip(
            "this release does not save the topology of a node".into(),
        ));
    }
    let unpack = function::<Unpack>(c"gres_node_state_unpack")?;
    let api = api()?;
    let mut wire = Wire::default()
        .u16(1)
        .u32(GRES_MAGIC)
        .u32(gpu(api))
        // config_flags, gres_cnt_avail, bits of gres_bit_alloc, topo_cnt.
        .u32(0)
        .u64(0x0e01)
        .u16(66)
        .u16(3);
    for entry in 0..3 {
        wire = wire.bits(72 + entry, 0x41).bits(76 + entry, 0x51);
        if probe.release >= RESERVED_FROM {
            wire = wire.bits(80 + entry, 0x61);
        }
    }
    wire = wire
        .array64(&[0x0f01, 0x0f02, 0x0f03])
        .array64(&[0x0f11, 0x0f12, 0x0f13])
        .array32(&[0x0f21, 0x0f22, 0x0f23])
        .texts(&["probe1", "probe2", "probe3"]);
    let mut list = std::ptr::null_mut();
    let packed = buffer(wire.0)?;
    let version = protocol(probe.release);
    // SAFETY: int gres_node_state_unpack(List *, buf_t *, char *, uint16_t).
    let code = unsafe { unpack(&raw mut list, packed, c"gpuos".as_ptr(), version) };
    if code != 0 {
        return Err(No::Misfit(
            "Slurm does not unpack a node's GPUs of its release".into(),
        ));
    }
    let fields = &probe.layout.gres_node;
    let at = data(probe, api, list, "gres_node_state", fields.whole)?;
    same(
        at,
        fields.gres_cnt_avail,
        0x0e01_u64,
        "gres_node_state.gres_cnt_avail",
    )?;
    same(at, fields.topo_cnt, 3_u16, "gres_node_state.topo_cnt")?;
    same_bits(
        at,
        fields.gres_bit_alloc,
        66,
        0,
        "gres_node_state.gres_bit_alloc",
    )?;
    topologies(probe, at)?;
    same(
        at,
        fields.gres_cnt_alloc,
        0_u64,
        "gres_node_state.gres_cnt_alloc",
    )?;
    same(at, fields.link_len, 0_i32, "gres_node_state.link_len")?;
    same(at, fields.type_cnt, 0_u16, "gres_node_state.type_cnt")?;
    same(
        at,
        fields.gres_cnt_found,
        NO_VAL64,
        "gres_node_state.gres_cnt_found",
    )?;
    Ok(())
}

/// The topology of both probes.
fn topologies(probe: &Probe<'_>, at: usize) -> Result<(), String> {
    let fields = &probe.layout.gres_node;
    let array = |offset: usize, each: usize, name: &str| {
        let array = read::<usize>(at + offset).unwrap_or(0);
        sizes::array(array, 3, each, &format!("gres_node_state.{name}"))?;
        match array {
            0 => Err(format!("gres_node_state.{name} is null")),
            array => Ok(array),
        }
    };
    let used = array(fields.topo_gres_cnt_alloc, 8, "topo_gres_cnt_alloc")?;
    let had = array(fields.topo_gres_cnt_avail, 8, "topo_gres_cnt_avail")?;
    let ids = array(fields.topo_type_id, 4, "topo_type_id")?;
    let names = array(fields.topo_type_name, 8, "topo_type_name")?;
    let cores = array(fields.topo_core_bitmap, 8, "topo_core_bitmap")?;
    let devices = array(fields.topo_gres_bitmap, 8, "topo_gres_bitmap")?;
    for index in 0..3 {
        let number = index as u64 + 1;
        same(
            used,
            index * 8,
            0x0f00 + number,
            "gres_node_state.topo_gres_cnt_alloc",
        )?;
        same(
            had,
            index * 8,
            0x0f10 + number,
            "gres_node_state.topo_gres_cnt_avail",
        )?;
        same(
            ids,
            index * 4,
            0x0f20 + number as u32,
            "gres_node_state.topo_type_id",
        )?;
        let name = format!("probe{number}");
        same_text(names, index * 8, &name, "gres_node_state.topo_type_name")?;
        same_bits(
            cores,
            index * 8,
            72 + index,
            0x41,
            "gres_node_state.topo_core_bitmap",
        )?;
        same_bits(
            devices,
            index * 8,
            76 + index,
            0x51,
            "gres_node_state.topo_gres_bitmap",
        )?;
    }
    Ok(())
}

/// What a node has of GPUs: types that Slurm reads from a text, a topology filled by the table, and a copy of both that
/// Slurm makes.
pub fn copied_node(probe: &Probe<'_>) -> Answer {
    type Init = unsafe extern "C" fn(*mut c_char, *mut *mut c_void) -> c_int;
    type Copy = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
    let init = function::<Init>(c"gres_init_node_config")?;
    let copy = function::<Copy>(c"gres_node_state_list_dup")?;
    let (api, fields) = (api()?, &probe.layout.gres_node);
    let mut list = std::ptr::null_mut();
    let config = text("gpu:probea:2,gpu:probeb:3") as *mut c_char;
    // SAFETY: int gres_init_node_config(char *, List *); before 23.02 a name stands first, and there it takes these
    // two as well.
    unsafe { init(config, &raw mut list) };
    let at = data(probe, api, list, "gres_node_state", fields.whole)?;
    types(probe, api, at)?;
    same(
        at,
        fields.gres_cnt_found,
        NO_VAL64,
        "gres_node_state.gres_cnt_found",
    )?;
    same(
        at,
        fields.gres_cnt_alloc,
        0_u64,
        "gres_node_state.gres_cnt_alloc",
    )?;
    // From here on within what Slurm allocated, which is as large as the table says.
    store(at, fields.topo_cnt, 3_u16);
    store(at, fields.link_len, 4_i32);
    let [cores, devices, used, had, ids, names, links] = [(); 7].map(|()| zeroed());
    for index in 0..3 {
        let number = index as u64 + 1;
        store(cores, index * 8, map(72 + index, 0x41));
        store(devices, index * 8, map(76 + index, 0x51));
        store(used, index * 8, 0x0f00 + number);
        store(had, index * 8, 0x0f10 + number);
        store(ids, index * 4, 0x0f20 + number as u32);
        store(names, index * 8, text(&format!("probe{number}")));
    }
    for row in 0..4 {
        let cells = zeroed();
        (0..4).for_each(|cell| store(cells, cell * 4, (row * 4 + cell) as i32));
        store(links, row * 8, cells);
    }
    for (offset, array) in [
        (fields.topo_core_bitmap, cores),
        (fields.topo_gres_bitmap, devices),
        (fields.topo_gres_cnt_alloc, used),
        (fields.topo_gres_cnt_avail, had),
        (fields.topo_type_id, ids),
        (fields.topo_type_name, names),
        (fields.links_cnt, links),
    ] {
        store(at, offset, array);
    }
    if let Ok(kept) = probe
        .fields
        .offset("gres_node_state", "topo_res_core_bitmap")
    {
        store(at, kept, zeroed());
    }
    store(at, fields.gres_bit_alloc, map(66, 0x71));
    store(at, fields.gres_cnt_alloc, 0x0e02_u64);
    store(at, fields.gres_cnt_found, 0x0e03_u64);
    // SAFETY: List gres_node_state_list_dup(List).
    let copies = unsafe { copy(list) };
    let made = data(probe, api, copies, "gres_node_state", fields.whole)?;
    if made == at {
        return Err(No::Misfit("a copy is no copy".into()));
    }
    same(made, fields.topo_cnt, 3_u16, "gres_node_state.topo_cnt")?;
    same(made, fields.link_len, 4_i32, "gres_node_state.link_len")?;
    same(
        made,
        fields.gres_cnt_alloc,
        0x0e02_u64,
        "gres_node_state.gres_cnt_alloc",
    )?;
    same(
        made,
        fields.gres_cnt_found,
        0x0e03_u64,
        "gres_node_state.gres_cnt_found",
    )?;
    same_bits(
        made,
        fields.gres_bit_alloc,
        66,
        0x71,
        "gres_node_state.gres_bit_alloc",
    )?;
    topologies(probe, made)?;
    types(probe, api, made)?;
    let rows = read::<usize>(made + fields.links_cnt).unwrap_or(0);
    sizes::array(rows, 4, 8, "gres_node_state.links_cnt")?;
    for row in 0..4 {
        let cells = read::<usize>(rows + row * 8).unwrap_or(0);
        same(cells, 12, (row * 4 + 3) as i32, "gres_node_state.links_cnt")?;
    }
    Ok(())
}

/// The two types of the text.
fn types(probe: &Probe<'_>, api: &Api, at: usize) -> Result<(), String> {
    let fields = &probe.layout.gres_node;
    same(at, fields.type_cnt, 2_u16, "gres_node_state.type_cnt")?;
    let array = |offset: usize| read::<usize>(at + offset).unwrap_or(0);
    let (ids, names) = (array(fields.type_id), array(fields.type_name));
    let used = array(fields.type_cnt_alloc);
    for (each, array, name) in [
        (4, ids, "type_id"),
        (8, names, "type_name"),
        (8, used, "type_cnt_alloc"),
    ] {
        if array == 0 {
            return Err(format!("gres_node_state.{name} is null"));
        }
        sizes::array(array, 2, each, &format!("gres_node_state.{name}"))?;
    }
    for (index, name) in [c"probea", c"probeb"].into_iter().enumerate() {
        // SAFETY: as in `gpu`.
        let id = unsafe { (api.gres_build_id)(name.as_ptr()) };
        same(ids, index * 4, id, "gres_node_state.type_id")?;
        same(used, index * 8, 0_u64, "gres_node_state.type_cnt_alloc")?;
        let name = name.to_string_lossy();
        same_text(names, index * 8, &name, "gres_node_state.type_name")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::protocol;
    use crate::release::Release;

    #[test]
    fn numbers_of_the_protocol() {
        for (release, number) in [
            ("22.05.0", 38),
            ("23.02.8", 39),
            ("23.11.0", 40),
            ("24.05.8", 41),
            ("24.11.5", 42),
            ("25.05.1", 43),
            ("25.11.7", 44),
            ("26.05.5", 45),
        ] {
            let release = Release::parse(release).expect("a release");
            assert_eq!(protocol(release), number << 8);
        }
        let versions = include_str!("../../data/versions.txt").lines();
        let first = versions.filter(|line| line.ends_with(".0"));
        let numbers = first.map(|line| protocol(Release::parse(line).expect("a release")));
        let numbers: Vec<u16> = numbers.collect();
        assert!(
            numbers.is_sorted_by(|a, b| a < b),
            "a new series of versions.txt has no line in NAMES of `protocol`: {numbers:?}"
        );
    }
}

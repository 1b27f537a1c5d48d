//! Node types as they are written: every key optional, every value with its place.
use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

/// A `[[node-type]]` table as it is written.
#[derive(Deserialize, Default, Clone)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write [[node-type]]")]
pub struct RawType {
    pub(super) name: Option<Spanned<String>>,
    pub(super) base: Option<Spanned<String>>,
    pub(super) gpu: Option<Spanned<String>>,
    pub(super) gres_type: Option<Spanned<String>>,
    pub(super) gpus: Option<Spanned<i64>>,
    pub(super) gpu_memory_mib: Option<Spanned<i64>>,
    pub(super) nvswitch: Option<bool>,
    pub(super) nvlinks: Option<Spanned<i64>>,
    pub(super) nvlink_pairs: Option<Spanned<Vec<Vec<i64>>>>,
    pub(super) pcie_switches: Option<Spanned<Vec<Vec<i64>>>>,
    pub(super) links: Option<Spanned<Vec<String>>>,
    pub(super) numa: Option<Spanned<Vec<i64>>>,
    pub(super) nvlink_gbps: Option<Spanned<f64>>,
    pub(super) pcie_gbps: Option<Spanned<f64>>,
    pub(super) socket_gbps: Option<Spanned<f64>>,
    pub(super) sockets: Option<Spanned<i64>>,
    pub(super) cores_per_socket: Option<Spanned<i64>>,
    pub(super) memory_gib: Option<Spanned<i64>>,
    pub(super) tflops: Option<Spanned<RawTflops>>,
    pub(super) gpu_memory_gbps: Option<Spanned<i64>>,
    pub(super) gpu_watts: Option<Spanned<i64>>,
    pub(super) node_watts: Option<Spanned<i64>>,
    pub(super) slowdown_celsius: Option<Spanned<i64>>,
    pub(super) price_per_gpu_hour: Option<Spanned<f64>>,
    pub(super) nic: Option<Vec<Spanned<RawNic>>>,
    pub(super) source: Option<Spanned<String>>,
}

/// Dense TFLOPS of a GPU by precision.
#[derive(Deserialize, Default, Clone)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write { bf16 = 312 }")]
pub(super) struct RawTflops {
    pub(super) fp64: Option<Spanned<f64>>,
    pub(super) tf32: Option<Spanned<f64>>,
    pub(super) bf16: Option<Spanned<f64>>,
    pub(super) fp8: Option<Spanned<f64>>,
    pub(super) fp4: Option<Spanned<f64>>,
}

#[derive(Deserialize, Default, Clone)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[serde(expecting = "a table: write [[node-type.nic]]")]
pub(super) struct RawNic {
    pub(super) name: Option<Spanned<String>>,
    pub(super) numa: Option<Spanned<i64>>,
    pub(super) rail: Option<Spanned<i64>>,
    pub(super) gbps: Option<Spanned<f64>>,
    pub(super) near: Option<Spanned<Vec<i64>>>,
    pub(super) link: Option<Spanned<String>>,
}

/// A value taken from a base: it counts as standing where the derived type stands, because
/// the base may be in another file.
fn moved<T: Clone>(value: &Option<Spanned<T>>, to: &Range<usize>) -> Option<Spanned<T>> {
    let value = value.as_ref()?.get_ref().clone();
    Some(Spanned::new(to.clone(), value))
}

impl RawNic {
    fn moved(&self, to: &Range<usize>) -> RawNic {
        RawNic {
            name: moved(&self.name, to),
            numa: moved(&self.numa, to),
            rail: moved(&self.rail, to),
            gbps: moved(&self.gbps, to),
            near: moved(&self.near, to),
            link: moved(&self.link, to),
        }
    }
}

impl RawType {
    /// This type, which stands at `at`, with what it does not say taken from `base`. Links
    /// are one statement: a type that says how its GPUs are linked takes nothing of the
    /// base's links. With another number of GPUs, nothing that counts GPUs is taken.
    pub(super) fn over(self, base: &RawType, at: Range<usize>) -> RawType {
        let at = &at;
        let count = |raw: &RawType| raw.gpus.as_ref().map(|gpus| *gpus.get_ref());
        let same = self.gpus.is_none() || count(&self) == count(base);
        let links = self.links.is_none()
            && self.nvswitch.is_none()
            && self.nvlink_pairs.is_none()
            && self.pcie_switches.is_none();
        let nics = |nics: &Vec<Spanned<RawNic>>| -> Vec<Spanned<RawNic>> {
            let each = nics.iter().map(|nic| nic.get_ref().moved(at));
            each.map(|nic| Spanned::new(at.clone(), nic)).collect()
        };
        macro_rules! take {
            ($field:ident, $when:expr) => {
                self.$field.or(moved(&base.$field, at).filter(|_| $when))
            };
        }
        RawType {
            base: None,
            nvlinks: take!(nvlinks, self.links.is_none()),
            nvlink_pairs: take!(nvlink_pairs, links && same),
            pcie_switches: take!(pcie_switches, links && same),
            links: take!(links, links && same),
            nvswitch: self.nvswitch.or(base.nvswitch.filter(|_| links)),
            numa: take!(numa, same),
            nic: self.nic.or(base.nic.as_ref().filter(|_| same).map(nics)),
            name: self.name,
            gpu: take!(gpu, true),
            gres_type: take!(gres_type, true),
            gpus: take!(gpus, true),
            gpu_memory_mib: take!(gpu_memory_mib, true),
            nvlink_gbps: take!(nvlink_gbps, true),
            pcie_gbps: take!(pcie_gbps, true),
            socket_gbps: take!(socket_gbps, true),
            sockets: take!(sockets, true),
            cores_per_socket: take!(cores_per_socket, true),
            memory_gib: take!(memory_gib, true),
            tflops: take!(tflops, true),
            gpu_memory_gbps: take!(gpu_memory_gbps, true),
            gpu_watts: take!(gpu_watts, true),
            // What a node takes beside its GPUs goes with their number.
            node_watts: take!(node_watts, same),
            slowdown_celsius: take!(slowdown_celsius, true),
            price_per_gpu_hour: take!(price_per_gpu_hour, true),
            source: take!(source, true),
        }
    }
}

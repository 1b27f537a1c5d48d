//! From bindgen's output to rows: offsets from the layout tests, C types from the fields.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use syn::{Expr, Fields, Item, Type, visit::Visit};

use crate::Row;

/// Structures of the table, with the typedefs to look under when there is no such tag. The
/// flag says whether every release has it.
const STRUCTURES: &[(&str, &str, bool)] = &[
    ("gres_device", "gres_device_t", true),
    ("gres_job_state", "gres_job_state_t", true),
    ("gres_node_state", "gres_node_state_t", true),
    ("gres_prep", "gres_prep_t", false),
    ("gres_slurmd_conf", "gres_slurmd_conf_t", true),
    ("gres_state", "gres_state_t", true),
    ("gres_step_state", "gres_step_state_t", true),
    ("job_descriptor", "job_desc_msg_t", true),
    ("job_details", "job_details_t", true),
    ("job_record", "job_record_t", true),
    ("job_resources", "job_resources_t", true),
    ("multi_core_data", "multi_core_data_t", false),
    ("node_config_load", "node_config_load_t", true),
    ("node_record", "node_record_t", true),
    ("part_record", "part_record_t", true),
    ("slurm_conf", "slurm_conf_t", true),
    ("slurmdb_assoc_rec", "slurmdb_assoc_rec_t", true),
    ("slurmdb_qos_rec", "slurmdb_qos_rec_t", true),
];

/// What bindgen's output says, by Rust name.
#[derive(Default)]
struct Declarations {
    structs: BTreeMap<String, Vec<(String, Type)>>,
    aliases: BTreeMap<String, Type>,
    offsets: BTreeMap<(String, String), u64>,
    sizes: BTreeMap<String, u64>,
}

/// The rows of all structures of the table in `rust`, the text that bindgen made.
pub fn rows(rust: &str) -> Result<Vec<Row>> {
    let file = syn::parse_file(rust).context("cannot parse what bindgen made")?;
    let mut all = Declarations::default();
    for item in &file.items {
        all.add(item);
    }
    let mut rows = Vec::new();
    for &(name, typedef, always) in STRUCTURES {
        let Some(rust_name) = all.find(name, typedef) else {
            if always {
                bail!(
                    "the headers define no struct {name}: this Slurm is too different from the \
                     releases that gpuos knows; leave SelectType at select/cons_tres and report it"
                );
            }
            continue;
        };
        let mut fields = Vec::new();
        for (field, ty) in &all.structs[&rust_name] {
            // Pointers to functions, as bindgen writes them: the table leaves them out.
            if last_name(ty).as_deref() == Some("Option") {
                continue;
            }
            let offset = *all
                .offsets
                .get(&(rust_name.clone(), field.clone()))
                .with_context(|| format!("no offset for {name}.{field}"))?;
            fields.push(Row {
                structure: name.into(),
                field: c_field(field),
                offset,
                size: all
                    .size(ty)
                    .with_context(|| format!("no size for {name}.{field}"))?,
                ctype: all
                    .c_type(ty)
                    .with_context(|| format!("no type for {name}.{field}"))?,
            });
        }
        fields.sort_by_key(|row| row.offset);
        rows.extend(fields);
    }
    Ok(rows)
}

impl Declarations {
    fn add(&mut self, item: &Item) {
        match item {
            Item::Struct(s) => {
                if let Fields::Named(named) = &s.fields {
                    let fields = named
                        .named
                        .iter()
                        .filter_map(|f| Some((f.ident.as_ref()?.to_string(), f.ty.clone())))
                        .collect();
                    self.structs.insert(s.ident.to_string(), fields);
                }
            }
            Item::Type(t) => {
                self.aliases.insert(t.ident.to_string(), (*t.ty).clone());
            }
            // `pub use self::enum_x as x;`: a typedef of an enum.
            Item::Use(u) => {
                if let Some((from, to)) = renamed(&u.tree) {
                    let ty = Type::Path(syn::TypePath {
                        qself: None,
                        path: from.into(),
                    });
                    self.aliases.insert(to.to_string(), ty);
                }
            }
            Item::Const(c) => LayoutTests(self).visit_expr(&c.expr),
            _ => {}
        }
    }

    /// Rust name of the structure `name` or of what `typedef` stands for.
    fn find(&self, name: &str, typedef: &str) -> Option<String> {
        let tag = format!("struct_{name}");
        if self.structs.contains_key(&tag) {
            return Some(tag);
        }
        let mut at = typedef.to_string();
        while let Some(next) = self.aliases.get(&at).and_then(last_name) {
            at = next;
        }
        self.structs.contains_key(&at).then_some(at)
    }

    fn size(&self, ty: &Type) -> Option<u64> {
        match ty {
            Type::Ptr(_) => Some(8),
            Type::Array(array) => Some(self.size(&array.elem)? * array_len(array)?),
            Type::Path(_) => {
                let name = last_name(ty)?;
                match name.as_str() {
                    "bool" | "u8" | "i8" | "c_char" | "c_schar" | "c_uchar" => Some(1),
                    "u16" | "i16" | "c_short" | "c_ushort" => Some(2),
                    "u32" | "i32" | "f32" | "c_int" | "c_uint" => Some(4),
                    "u64" | "i64" | "f64" | "usize" | "isize" | "c_long" | "c_ulong"
                    | "c_longlong" | "c_ulonglong" => Some(8),
                    _ => match self.sizes.get(&name) {
                        Some(&size) => Some(size),
                        None => self.size(self.aliases.get(&name)?),
                    },
                }
            }
            _ => None,
        }
    }

    /// The C spelling, as debug information has it: typedef names stay, a pointer is ` *`.
    fn c_type(&self, ty: &Type) -> Option<String> {
        match ty {
            Type::Ptr(pointer) => Some(format!("{} *", self.c_type(&pointer.elem)?)),
            Type::Array(array) => Some(format!(
                "{} [{}]",
                self.c_type(&array.elem)?,
                array_len(array)?
            )),
            Type::Path(_) => {
                let name = last_name(ty)?;
                let c = match name.as_str() {
                    "u8" => "uint8_t",
                    "u16" => "uint16_t",
                    "u32" => "uint32_t",
                    "u64" => "uint64_t",
                    "i8" => "int8_t",
                    "i16" => "int16_t",
                    "i32" => "int32_t",
                    "i64" => "int64_t",
                    "f32" => "float",
                    "f64" => "double",
                    "bool" => "_Bool",
                    "usize" => "size_t",
                    "c_char" => "char",
                    "c_schar" => "signed char",
                    "c_uchar" => "unsigned char",
                    "c_short" => "short",
                    "c_ushort" => "unsigned short",
                    "c_int" => "int",
                    "c_uint" => "unsigned int",
                    "c_long" => "long",
                    "c_ulong" => "unsigned long",
                    "c_longlong" => "long long",
                    "c_ulonglong" => "unsigned long long",
                    "c_void" => "void",
                    _ => {
                        return Some(
                            ["struct", "union", "enum"]
                                .iter()
                                .find_map(|tag| {
                                    let rest = name.strip_prefix(tag)?.strip_prefix('_')?;
                                    Some(format!("{tag} {rest}"))
                                })
                                .unwrap_or(name),
                        );
                    }
                };
                Some(c.to_string())
            }
            _ => None,
        }
    }
}

/// Collects `["Size of S"][size_of::<S>() - N]` and `["Offset of field: S::f"][… - N]`.
struct LayoutTests<'a>(&'a mut Declarations);

impl<'ast> Visit<'ast> for LayoutTests<'_> {
    fn visit_expr_index(&mut self, index: &'ast syn::ExprIndex) {
        let Some((label, number)) = label(&index.expr).zip(subtracted(&index.index)) else {
            return;
        };
        if let Some(name) = label.strip_prefix("Size of ") {
            self.0.sizes.insert(name.to_string(), number);
        } else if let Some(place) = label.strip_prefix("Offset of field: ")
            && let Some((name, field)) = place.split_once("::")
        {
            self.0
                .offsets
                .insert((name.to_string(), field.to_string()), number);
        }
    }
}

/// The text in `["text"]`.
fn label(expr: &Expr) -> Option<String> {
    let Expr::Array(array) = expr else {
        return None;
    };
    match array.elems.first()? {
        Expr::Lit(syn::ExprLit {
            lit: syn::Lit::Str(text),
            ..
        }) => Some(text.value()),
        _ => None,
    }
}

/// N in `… - Nusize`.
fn subtracted(expr: &Expr) -> Option<u64> {
    let Expr::Binary(binary) = expr else {
        return None;
    };
    literal(&binary.right)
}

fn literal(expr: &Expr) -> Option<u64> {
    match expr {
        Expr::Lit(syn::ExprLit {
            lit: syn::Lit::Int(n),
            ..
        }) => n.base10_parse().ok(),
        _ => None,
    }
}

fn array_len(array: &syn::TypeArray) -> Option<u64> {
    literal(&array.len)
}

fn last_name(ty: &Type) -> Option<String> {
    match ty {
        Type::Path(path) => Some(path.path.segments.last()?.ident.to_string()),
        _ => None,
    }
}

/// `(enum_x, x)` of `self::enum_x as x`.
fn renamed(tree: &syn::UseTree) -> Option<(syn::Ident, syn::Ident)> {
    match tree {
        syn::UseTree::Path(path) => renamed(&path.tree),
        syn::UseTree::Rename(rename) => Some((rename.ident.clone(), rename.rename.clone())),
        _ => None,
    }
}

/// The field's name in C: bindgen appends `_` to names that are words of Rust.
fn c_field(rust: &str) -> String {
    let rust = rust.strip_prefix("r#").unwrap_or(rust);
    match rust.strip_suffix('_') {
        Some(name) if syn::parse_str::<syn::Ident>(name).is_err() && !name.is_empty() => {
            name.into()
        }
        _ => rust.into(),
    }
}

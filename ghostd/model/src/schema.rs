//! OpenAPI schemas of the types that are texts or maps on the wire.

use crate::{GpuId, Key, Name, Spec};
use std::borrow::Cow;
use utoipa::openapi::schema::{AdditionalProperties, Object, ObjectBuilder, SchemaType, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

fn text(description: &str, example: &str) -> RefOr<Schema> {
    ObjectBuilder::new()
        .schema_type(SchemaType::Type(Type::String))
        .description(Some(description))
        .examples([example])
        .into()
}

impl PartialSchema for Name {
    fn schema() -> RefOr<Schema> {
        text("A container's name; `/` makes a tree.", "team/job")
    }
}

impl ToSchema for Name {
    fn name() -> Cow<'static, str> {
        "Name".into()
    }
}

impl PartialSchema for GpuId {
    fn schema() -> RefOr<Schema> {
        text("A GPU's UUID.", "GPU-8f6b1c2e-0000-0000-0000-000000000000")
    }
}

impl ToSchema for GpuId {
    fn name() -> Cow<'static, str> {
        "GpuId".into()
    }
}

impl PartialSchema for Spec {
    fn schema() -> RefOr<Schema> {
        let any = |doc: &str| {
            Object::builder()
                .schema_type(SchemaType::AnyValue)
                .description(Some(doc))
                .build()
        };
        let mut object = ObjectBuilder::new()
            .schema_type(SchemaType::Type(Type::Object))
            .description(Some(
                "Keys and values; a text is parsed as ghostctl parses it.",
            ))
            .additional_properties(Some(AdditionalProperties::FreeForm(false)));
        for key in Key::ALL
            .iter()
            .filter(|k| k.mode() == crate::key::Mode::Setting)
        {
            object = object.property(key.as_str(), any(key.doc()));
        }
        object
            .property(
                crate::spec::DEVICE,
                any("Values for one GPU, keyed by its UUID."),
            )
            .into()
    }
}

impl ToSchema for Spec {
    fn name() -> Cow<'static, str> {
        "Spec".into()
    }
}

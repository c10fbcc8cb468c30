"""Conversion of OpenAPI documents (3.0, 3.1 and Swagger 2, in JSON or YAML) to bundles of HTTP
tools.

`document` parses the text and resolves `$ref`, `schemas` translates schemas, `names` creates names
and `security` finds the credentials. `operations` converts an operation to a tool, with
`parameters` and `bodies`, which write to a `request`; `swagger` converts version 2 to version 3;
`converter` converts a whole document. Nothing is fetched and nothing is stored.
"""

from onetool.sources.bundles.imported import BundleImport
from onetool.sources.bundles.openapi.converter import to_bundle

__all__ = ["BundleImport", "to_bundle"]

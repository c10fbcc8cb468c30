"""OpenAPI documents as bundles of HTTP tools: 3.0, 3.1 and Swagger 2, in JSON or YAML.

`document` reads the text, `references` follows `$ref`, `schemas` and `keywords` translate schemas, `names` makes names,
`servers` finds the address and `security` the credentials. `operations` makes one tool of one operation with
`parameters` and `bodies`, which write into a `request`; `swagger` puts version 2 into the words of 3; `importing` does
it for a whole document. Nothing is fetched and nothing is stored.
"""

from onetool.bundles.imported import Imported
from onetool.bundles.openapi.importing import to_bundle

__all__ = ["Imported", "to_bundle"]

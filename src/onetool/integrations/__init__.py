"""OneTool in other programs: adapters to model providers and agent frameworks, and recorded tests.

Start with `model_tools.py`: it has names that every provider accepts, definitions of tools, and
calls whose result is text for a model. `providers`, `langchain` and `pydantic_ai` translate these
into the formats of others. `testing` replays a recorded run in a test.

What holds here:

- An adapter calls tools through the bus, like every other caller.
- Each module that needs a package has an extra with the same name, and imports the package only
  there.
- A translated name leads back to exactly one tool.
- `testing.replay` calls no tool and reads no settings.
"""

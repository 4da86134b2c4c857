"""The OpenAPI document of the partner API, made from the code. Never shipped: its output is.

Each area of the API is a module that declares its calls by `forms.call` and its answers as pydantic
models; `document` puts them together, and `changes` compares two documents.
"""

"""The stages of a compile, each a few calls into passes and code generators; `ptqc.compiler` puts them in order."""

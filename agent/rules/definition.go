package rules

import (
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/endpoint"
)

// DefinitionOf returns an endpoint in the form of the API.
func DefinitionOf(ep *endpoint.Endpoint) api.Definition {
	d := api.Definition{Type: ep.Type.String(), Path: ep.Path, Netns: ep.Netns, Nameable: ep.Nameable}
	if ep.Type != endpoint.Unix {
		d.Addr, d.Port = ep.Addr.String(), "dynamic"
	}
	if ep.Type != endpoint.Unix && !ep.Dynamic() {
		d.Port = ep.Port.String()
	}
	return d
}

// ParseDefinition reads an endpoint of a name in the form of the API.
func ParseDefinition(name string, d api.Definition) (*endpoint.Endpoint, error) {
	words := []string{name}
	for _, w := range [][2]string{{"type", d.Type}, {"addr", d.Addr}, {"port", d.Port}, {"path", d.Path}, {"netns", d.Netns}} {
		if w[1] != "" {
			words = append(words, w[:]...)
		}
	}
	if d.Nameable {
		words = append(words, "nameable")
	}
	return endpoint.ParseWords(words)
}

package api

// Endpoint is an endpoint of a running container.
type Endpoint struct {
	Container string `json:"container"`
	Name      string `json:"name"`
	Definition
	Rules []string `json:"rules"` // those that name it, as tsugiki run takes them
}

// Definition has the parts of an endpoint in the words of the grammar. Parts that its type does not
// have are empty.
type Definition struct {
	Type  string `json:"type"`
	Addr  string `json:"addr"`
	Port  string `json:"port"`
	Path  string `json:"path"`
	Netns string `json:"netns"`
	// Nameable lets programs name the endpoint themselves (AF_GRAFT).
	Nameable bool `json:"nameable"`
}

package api

// Endpoint is an endpoint of a running container.
type Endpoint struct {
	Container string `json:"container"`
	Name      string `json:"name"`
	Definition
	Rules []string `json:"rules"` // those that name it, as tsugiki run takes them
}

// Definition is what an endpoint is, in the words of the grammar; what does not
// go with its type is empty.
type Definition struct {
	Type  string `json:"type"`
	Addr  string `json:"addr"`
	Port  string `json:"port"`
	Path  string `json:"path"`
	Netns string `json:"netns"`
	// Nameable lets programs name the endpoint themselves (AF_GRAFT).
	Nameable bool `json:"nameable"`
}

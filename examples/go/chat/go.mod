module lowkey/examples/go/chat

go 1.19

require lowkey/bindings/go/lowkey v0.0.0

replace lowkey/bindings/go/lowkey => ../../../bindings/go/lowkey

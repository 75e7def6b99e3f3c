/* lua: the Lua module `cairn`. The names of this room begin with bind_, since lua_ is Lua's own.
 * It is the topmost room: no other uses it. */

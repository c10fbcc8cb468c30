/** Where the page begins: the frame, and in it whatever screen the address names. */
import "./core/frame.js";
